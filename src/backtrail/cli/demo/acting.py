"""A scripted agent that works on the project, and a writer that is killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ... import Session
from ...events import Json
from ..screen import Screen
from .stage import Stage

TITLE = "The greeter"
ACKNOWLEDGED = 100
"""Events that the writer has reported when it is killed."""

_numbers = itertools.count(1)

_WRITER = """
import sys
from backtrail import Session
with Session.open(sys.argv[1], "report", title="A long report") as s:
    n = 0
    while True:
        n += 1
        s.append({"role": "assistant", "content": f"line {n} of the report"})
        print(n, flush=True)
"""


def _calling(name: str, **input: Json) -> dict[str, Json]:
    function = {"name": name, "arguments": json.dumps(input)}
    call = {"id": f"call-{next(_numbers)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


_REPLIES: list[Json] = [
    _calling("edit", path="app.py", old_string="'world'", new_string="input('Name? ')"),
    "The program asks for a name now.",
    _calling("bash", command="sed -i.bak 's/Hello/Hi/' lib/greet.py"),
    _calling("bash", command="mv app.py main.py && mkdir -p src && touch src/__init__.py"),
    _calling("bash", command="rm -rf lib .env"),
    "Done. I removed what was not needed.",
]
"""What the model says: the built-in agent then runs these tools for real."""


@contextmanager
def agent(stage: Stage) -> Iterator[Session]:
    """A session of the built-in agent whose model is a script."""
    with Session.create(
        stage.url,
        "greeter",
        cwd=stage.project,
        title=TITLE,
        agent="scripted:demo",
        tools="all",
        phase="trusted",
        agent_options={"replies": _REPLIES},
    ) as session:
        yield session


def prompt(stage: Stage, session: Session, text: str) -> None:
    """Say something to the agent, and show what it does."""
    stage.out.line(f"> {text}", "cyan")
    screen = Screen(stage.out)
    for item in session.stream(text):
        screen.show(item)


def killed_writer(stage: Stage) -> int:
    """Kill a process in the middle of its work; how many events it had reported."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _WRITER, stage.url],
        cwd=stage.folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        reported = 0
        for line in writer.stdout:
            reported = int(line)
            if reported == ACKNOWLEDGED:
                os.kill(writer.pid, signal.SIGKILL)
    return reported
