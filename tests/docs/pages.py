"""The pages and the blocks of commands in them.

A block in `sh` is commands, one a line. A block in `console` is a terminal: lines with `$ ` are
commands, what follows one is its output, if that is shown at all. In output `…` stands for
anything, and a line of it alone for any lines.

A block whose commands cannot run in a test has a line `<!-- not run: REASON -->` before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
HOME = "/home/you"
"""What the home folder is called in pages."""

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
_WHEN = re.compile(r"just now|\d+ (?:s|min) ago")
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}(?:-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})?\b")


@dataclass(frozen=True)
class Step:
    """A command, and what it prints; None where the page does not say."""

    command: str
    output: list[str] | None = None


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    """A page as tests are named."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        if match["language"] in languages:
            line = text.count("\n", 0, match.start("text")) + 1
            body = match["text"]
            steps = _steps(match["language"], body)
            found.append(Block(page, line, match["language"], body, match["reason"], steps))
    return found


def _steps(language: str, text: str) -> list[Step]:
    if language == "sh":
        return [Step(line) for line in text.splitlines() if line.strip()]
    steps: list[Step] = []
    for line in text.splitlines() if language == "console" else ():
        if line.startswith("$ "):
            steps.append(Step(line[2:]))
        elif steps:
            steps[-1] = Step(steps[-1].command, [*(steps[-1].output or []), line])
    return steps


def differences(shown: list[str], printed: str) -> str | None:
    """What the page shows and the command did not print, or None."""
    lines = [normal(line) for line in printed.rstrip("\n").split("\n")]
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else re.escape(normal(line)).replace("…", ".*") + r"\n"
        for line in "\n".join(shown).rstrip("\n").split("\n")
    )
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)):
        return None
    return "the page shows\n{}\nand the command printed\n{}".format("\n".join(shown), printed)


def normal(line: str) -> str:
    """A line without what differs from run to run, and widths that depend on it."""
    return re.sub(r"(?<=\S) +", " ", _ID.sub("ID", _WHEN.sub("WHEN", line))).rstrip()
