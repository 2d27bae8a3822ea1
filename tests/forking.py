"""Runs `backtrail` in a process that is forked from one where it is imported already.

Most of what a hook takes is the start of Python and of modules, and the tests start thousands of
hooks. Each still is a process of its own, with its own environment, folder and output, and ends as
one. The tests of starting, of limits and of kills start the program itself.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

_LONGEST = 1 << 20
_LEFT_OUT = ("testing", "web", "adapters", "postgres", "s3", "__main__")


class ForkServer:
    """The process that forks; each process of the tests has one."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.forking", str(theirs.fileno())]
        root = Path(__file__).resolve().parents[1]
        self._child = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=root)
        theirs.close()
        self._busy = threading.Lock()
        atexit.register(self._close)

    def run(
        self, arguments: list[str], env: Mapping[str, str], cwd: str, given: bytes, timeout: float
    ) -> tuple[int, bytes, bytes] | None:
        """Run `backtrail` to its end: exit code, stdout, stderr; None while another runs."""
        if not self._busy.acquire(blocking=False):
            return None
        with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
            files = (stdin, stdout, stderr)
            try:
                stdin.write(given)
                stdin.seek(0)
                request = json.dumps([arguments, dict(env), cwd]).encode()
                socket.send_fds(self._ours, [request], [file.fileno() for file in files])
                self._ours.settimeout(timeout)
                code = int(self._ours.recv(64))
            finally:
                self._busy.release()
            for file in files:
                file.seek(0)
            return code, stdout.read(), stderr.read()

    def _close(self) -> None:
        self._ours.close()
        self._child.wait(10)


@cache
def server() -> ForkServer:
    """The one of this process."""
    return ForkServer()


def _preload() -> None:
    """Import what any verb needs."""
    import backtrail

    for module in pkgutil.walk_packages(backtrail.__path__, "backtrail."):
        if not any(part in _LEFT_OUT for part in module.name.split(".")):
            importlib.import_module(module.name)


def _serve(number: int) -> None:
    """Fork for each request, until the tests are over; in the child, return what it is to run."""
    with socket.socket(fileno=number) as asked:
        while True:
            request, files, _, _ = socket.recv_fds(asked, _LONGEST, 3)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                asked.close()
                arguments, env, cwd = json.loads(request)
                _become(arguments, env, cwd, files)
            for file in files:
                os.close(file)
            _, status = os.waitpid(pid, 0)
            asked.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(arguments: list[str], env: dict[str, str], cwd: str, files: list[int]) -> None:
    """Run `backtrail` in this process, and end with it."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["backtrail", *arguments]
    from backtrail.cli import main

    sys.exit(main())


if __name__ == "__main__":
    _preload()
    _serve(int(sys.argv[1]))
