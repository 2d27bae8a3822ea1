"""What the tour shows, in which order, and what it has to prove."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from ... import Session
from ...errors import BacktrailError
from ...events.messages import text_of
from ..output import Output
from .acting import agent, killed_writer, prompt
from .stage import FILES, Stage

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
    stage.say("   Event by event; your own edit is in there, as somebody else's")
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
    sys.stdout.flush()
