"""Two servers that speak S3's protocol, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.postgres import free_port

KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_REGION": "us-east-1",
}


@contextmanager
def running(kind: str, folder: Path) -> Iterator[str]:
    """A server, `moto` or `ministack`; its endpoint."""
    port = free_port()
    programs = Path(sys.executable).parent
    if kind == "moto":
        words = [str(programs / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    else:
        words = [str(programs / "ministack")]
    env = {**os.environ, "GATEWAY_PORT": str(port), "SERVICES": "s3", "LOG_LEVEL": "ERROR"}
    endpoint = f"http://127.0.0.1:{port}"
    with open(folder / f"{kind}.log", "wb") as log:
        process = subprocess.Popen(
            words, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            _wait(endpoint, process)
            yield endpoint
        finally:
            process.kill()
            process.wait()


def _wait(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.05)
    raise RuntimeError("the server does not answer")


def make_bucket(endpoint: str, region: str = "us-east-1") -> str:
    """A new bucket; its name."""
    name = f"b{uuid.uuid4().hex}"
    client(endpoint, region).create_bucket(
        Bucket=name,
        **(
            {}
            if region == "us-east-1"
            else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        ),
    )
    return name


def client(endpoint: str, region: str = "us-east-1") -> Any:
    """Another program's client, to look at a bucket with."""
    import boto3  # type: ignore[import-untyped]

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )


def objects(endpoint: str, bucket: str) -> dict[str, int]:
    """What is in a bucket: names and sizes."""
    found = client(endpoint).list_objects_v2(Bucket=bucket)
    return {one["Key"]: one["Size"] for one in found.get("Contents", [])}
