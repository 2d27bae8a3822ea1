"""`demo`: a tour. Under a minute, no network, no keys.

Commands are printed as a person types them, and what is printed is what runs, in a process of
its own. So the output is that of the real thing.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import Session
from ..errors import BacktrailError
from ..events import Json
from ..events.messages import text_of
from .call import Call
from .output import Output
from .screen import Screen
from .verbs import Command, Usage, none

FILES = {
    "app.py": "from lib.greet import hello\n\nprint(hello('world'))\n",
    "lib/greet.py": "def hello(name):\n    return f'Hello, {name}!'\n",
    "notes.md": "# Notes\n\nAsk before deleting anything.\n",
    ".env": "TOKEN=the-only-copy\n",
}
"""The project before the agent works on it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the tour takes place."""

    folder: Path
    out: Output

    @classmethod
    def build(cls, out: Output) -> Stage:
        """A new folder, with the project in it."""
        # Real, since a session's folder is compared by its real path, and people will `cd` here.
        stage = cls(Path(os.path.realpath(tempfile.mkdtemp(prefix="backtrail-demo-"))), out)
        # The person's own machine need not know of this root.
        os.environ["BACKTRAIL_STATE"] = str(stage.folder / "state")
        for name, text in FILES.items():
            path = stage.project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return stage

    @property
    def project(self) -> Path:
        """The folder that the agent works in."""
        return self.folder / "project"

    @property
    def url(self) -> str:
        """The store."""
        return f"sqlite:///{self.folder / 'agent.db'}"

    def say(self, text: str) -> None:
        """Print what comes next."""
        self.out.line()
        self.out.line(text, "bold")

    def run(self, line: str) -> None:
        """Show a command line and run it in the project.

        `backtrail` is run by this very interpreter, so that it is this version of it.
        """
        self.out.line(f"$ {line}", "green")
        self.out.flush()
        words = shlex.split(line)
        command = ["sh", "-c", line]
        if words[0] == "backtrail":
            # -P: a module of the project must not be taken for one of ours.
            command = [sys.executable, "-P", "-m", "backtrail", *words[1:]]
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            # Where the reader is gone, this says so, and the failure is none.
            self.out.line(f"(exit code {done.returncode})")
            self.out.flush()
            raise BacktrailError(f"the tour failed at `{line}`; its folder is {self.folder}")

    def environment(self) -> dict[str, str]:
        """The environment of commands: that of the person, with our store."""
        # Unbuffered, so that notes on stderr come in a pipe where they come on a terminal.
        return {**os.environ, "BACKTRAIL_STORE": self.url, "PYTHONUNBUFFERED": "1"}


# --- the agent, and the writer that is killed -

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


# --- the tour -

_MINE = "Mine: ask Monday about the token."


def take_tour(out: Output) -> None:
    """Run the tour in a temporary folder, which stays there."""
    stage = Stage.build(out)
    out.line("A tour, in a folder of its own. Lines that begin with $ are commands that run.")
    out.line(f"  {stage.folder}")
    _work(stage)
    _look(stage)
    _go_back(stage)
    _beside(stage)
    _crash(stage)
    _farewell(stage)


def _work(stage: Stage) -> None:
    stage.say("1. An agent works on a small project (its model is a script, its tools are real)")
    stage.run("ls -A . lib")
    with agent(stage) as session:
        prompt(stage, session, "Ask for the name.")
        stage.say("   Meanwhile you edit a file yourself")
        stage.run(f"echo {shlex.quote(_MINE)} >> notes.md")
        stage.say("   Then the agent breaks things with the shell")
        prompt(stage, session, "Modernise the project.")
    stage.run("ls -A")


def _look(stage: Stage) -> None:
    stage.say("2. What happened?")
    stage.run("backtrail")
    stage.say("   Event by event; your own edit is in there, as a change by others")
    stage.run("backtrail log")
    stage.say("   What the last turn did to the files, and who removed .env")
    stage.run("backtrail diff --stat")
    stage.run("backtrail log -- .env")


def _go_back(stage: Stage) -> None:
    stage.say("3. What would going back do? This only says so")
    stage.run("backtrail rewind --last --dry-run")
    stage.say("   Go back, conversation and files (without --yes you are asked)")
    stage.run("backtrail rewind --last --yes")
    stage.run("ls -A . lib")
    stage.say("   Your own edit is still there")
    stage.run("tail -n 1 notes.md")
    _check(stage)
    stage.say("4. Changed your mind? Going back can be taken back, and done again")
    stage.run("backtrail undo --yes")
    stage.run("ls -A")
    stage.run("backtrail redo --yes")
    _check(stage)


def _beside(stage: Stage) -> None:
    stage.say("5. Try something else beside it: a fork has its own conversation and files")
    stage.run("backtrail fork --into ../plan-b --title 'Plan B'")
    stage.run("ls -A ../plan-b")
    stage.run("backtrail tree")
    stage.say("6. Find it again, and show it to others")
    stage.run("backtrail search modernise")
    stage.run("backtrail export greeter -o ../greeter.html")


def _check(stage: Stage) -> None:
    """The tour proves what it says: the agent's last turn is gone, the person's edit is not."""
    wanted = dict(FILES)
    wanted["app.py"] = wanted["app.py"].replace("'world'", "input('Name? ')")
    wanted["notes.md"] += f"{_MINE}\n"
    found = {
        str(path.relative_to(stage.project)): path.read_text(encoding="utf-8")
        for path in stage.project.rglob("*")
        if path.is_file()
    }
    if found != wanted:
        raise BacktrailError(f"the tour failed: the files in {stage.project} did not come back")


def _crash(stage: Stage) -> None:
    stage.say("7. A process that writes a session is killed with kill -9")
    reported = killed_writer(stage)
    with Session.open(stage.url, "report") as session:
        found = sum("of the report" in text_of(message) for message in session.messages())
        session.append({"role": "user", "content": "Go on."})
    stage.out.line(f"it had reported {reported} events when it died; {found} are in the log,")
    stage.out.line("and another process has gone on with the session:")
    if found < reported:
        raise BacktrailError(f"the tour failed: {reported - found} events are missing")
    stage.run("backtrail log report -n 3")
    stage.run("backtrail verify")


def _farewell(stage: Stage) -> None:
    folder, url = shlex.quote(str(stage.project)), shlex.quote(stage.url)
    stage.say("Go on by hand:")
    stage.out.line(f"  cd {folder}")
    stage.out.line(f"  export BACKTRAIL_STORE={url}")
    scripts = Path(sysconfig.get_path("scripts"))
    if shutil.which("backtrail") is None and os.access(scripts / "backtrail", os.X_OK):
        stage.out.line(f'  export PATH={shlex.quote(str(scripts))}:"$PATH"')
    stage.out.line("  backtrail rewind        pick a prompt, see the plan, choose")
    stage.out.line("  backtrail --help        all verbs")
    stage.out.line(f"The page of the session is {stage.folder / 'greeter.html'}.")
    stage.out.line("Nothing but that folder was touched. To remove it:")
    stage.out.line(f"  rm -rf {shlex.quote(str(stage.folder))}")
    stage.out.line("And to see it all in your browser:")
    stage.out.line(f"  backtrail ui --store {url}")
    sys.stdout.flush()


def _run(call: Call) -> None:
    if call.out.as_json:
        raise Usage("the tour is for people: take it without `--json`")
    take_tour(call.out)


COMMANDS = {"demo": Command(none, _run, "backtrail demo")}
