"""The part of the tour that is about files: an agent works, breaks things, and is taken back."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from . import Session
from .views import Rewind

Say = Callable[[str, str], None]

_FILES = {
    "app.py": "from lib.greet import hello\n\nprint(hello('world'))\n",
    "lib/greet.py": "def hello(name):\n    return f'Hello, {name}!'\n",
    "notes.md": "# Notes\n\nAsk before deleting anything.\n",
    ".env": "TOKEN=only-copy-in-the-world\n",
}


def show_files(url: str, folder: Path, say: Say) -> None:
    """A scripted agent at work in a project, and how it all comes back."""
    project = folder / "project"
    for name, text in _FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    say("A project, watched over", f"s = Session.open(url, 'files', cwd='{project}')")
    with Session.open(url, "files", cwd=project) as s:
        point = s.checkpoint("before the agent")
        with s.turn("Modernise this project."):
            _shell(s, project, "sed -i 's/Hello/Hi/' lib/greet.py", say)
            _shell(s, project, "mv app.py main.py && echo 'import sys' >> main.py", say)
            _shell(s, project, "rm -rf lib .env && touch DONE", say)
        say("Meanwhile you edit a file yourself", "")
        with (project / "notes.md").open("a", encoding="utf-8") as notes:
            notes.write("Mine: call Ann back.\n")
        _list(project)
        say("What did it do?", "print(s.diff(point))")
        print("  " + str(s.diff(point)).replace("\n", "\n  ").rstrip())
        say("What would going back do?", "s.rewind(point, dry_run=True)")
        _plan(s.rewind(point, dry_run=True))
        say("Go back: conversation and files", "s.rewind(point)")
        done = s.rewind(point)
        _list(project)
        print(
            f"  {len(s.messages())} messages; {len(done.files_changed)} paths went back;", end=" "
        )
        print("your edit of notes.md is still there")
        say("Changed our mind", "s.undo()")
        s.undo()
        _list(project)
        say("And back for good", "s.redo()")
        s.redo()
        _list(project)
        _check(project)


def _check(project: Path) -> None:
    """The tour proves what it says."""
    texts = {name: (project / name).read_text(encoding="utf-8") for name in _FILES}
    texts["notes.md"] = texts["notes.md"].removesuffix("Mine: call Ann back.\n")
    if texts != _FILES:
        raise SystemExit("the files did not come back")


def _shell(session: Session, project: Path, command: str, say: Say) -> None:
    with session.tool("bash", {"command": command}) as call:
        subprocess.run(command, shell=True, cwd=project, check=True)
        call.result = "done"
    say("The agent runs", command)


def _list(project: Path) -> None:
    names = sorted(str(p.relative_to(project)) for p in project.rglob("*") if p.is_file())
    print("  " + "  ".join(names))


def _plan(plan: Rewind) -> None:
    for file in plan.files:
        lines = f"+{file.insertions} -{file.deletions}"
        print(f"  {file.action:<8} {file.path:<16} {lines:<8} {file.reason}".rstrip())
