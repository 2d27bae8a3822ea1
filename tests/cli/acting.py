"""What tests of the verbs that go back share: a project, an agent's work in it, a terminal."""

from __future__ import annotations

from pathlib import Path

from backtrail import Session
from backtrail.events import Json

from .stage import ESCAPE, Ran, Stage
from .terminal import Terminal


class Project(Stage):
    """A stage whose files are looked at, and that has a terminal."""

    @property
    def root(self) -> Path:
        """The folder that sessions work in."""
        return self.project

    @property
    def home(self) -> Path:
        """What is around it."""
        return self.folder

    def run(
        self, *arguments: str, cwd: Path | None = None, input: str = "", **environment: str
    ) -> Ran:
        done = super().run(*arguments, cwd=cwd, input=input, **environment)
        assert "Traceback" not in done.err, done.err
        assert ESCAPE not in done.out + done.err
        return done

    def terminal(
        self,
        *arguments: str,
        columns: int = 100,
        lines: int = 30,
        output: Path | None = None,
        **env: str,
    ) -> Terminal:
        """Run a verb on a terminal."""
        # The window has a size, so nothing else may say one.
        given = {name: text for name, text in self.environment().items() if name != "COLUMNS"}
        return Terminal(
            *arguments,
            cwd=self.root,
            env={**given, **env},
            columns=columns,
            lines=lines,
            output=output,
        )

    def files(self) -> dict[str, str]:
        """The files as they are."""
        return files_in(self.root)

    def write(self, name: str, text: str) -> None:
        """Change a file, as a person does."""
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text)

    def said(self, id: str = "work") -> list[str]:
        """What was said, as it stands."""
        with Session.open(self.url, id, files=False) as session:
            return [str(message["content"]) for message in session.messages()]


def empty(folder: Path) -> Project:
    """A project without anything in it."""
    made = Project(folder)
    made.root.mkdir()
    return made


def files_in(folder: Path) -> dict[str, str]:
    """All files of a folder, by name."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def work(project: Project, id: str = "work", **options: Json) -> None:
    """Two turns of an agent: it makes a file, then breaks two and removes one by the shell."""
    project.write("app.py", "foo = 1\nbar = 2\n")
    project.write("notes.md", "by a person\n")
    project.write("old.py", "old\n")
    options.setdefault("title", "The work")
    with Session.create(project.url, id, cwd=project.root, **options) as session:
        session.append({"role": "user", "content": "make a file"})
        with session.tool("write", {"path": "new.py"}, paths=["new.py"]):
            project.write("new.py", "one\ntwo\n")
        session.append({"role": "assistant", "content": "Made."})
        session.append({"role": "user", "content": "now break things"})
        with session.tool("bash", {"command": "sed -i …"}):
            project.write("app.py", "foo = 3\n")
            project.write("notes.md", "by the agent\n")
            (project.root / "old.py").unlink()
        session.append({"role": "assistant", "content": "Broken."})


BEGIN = {"app.py": "foo = 1\nbar = 2\n", "notes.md": "by a person\n", "old.py": "old\n"}
MADE = {**BEGIN, "new.py": "one\ntwo\n"}
BROKEN = {"app.py": "foo = 3\n", "new.py": "one\ntwo\n", "notes.md": "by the agent\n"}
