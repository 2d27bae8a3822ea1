"""How far one has to read to follow a call: calls, modules, and changes of module.

`python -m bench.walks` prints them for an append, a bracket around one changed file, and a rewind
with files, on SQLite; with `--list` also the modules that each enters. Functions of this package
that the caller's thread enters count, in their order; what Python compiles into functions of their
own does not.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import backtrail
from backtrail import Session

SOURCE = f"{Path(backtrail.__file__).parent}/"
HIDDEN = ("<genexpr>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>")
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


def walk(act: Callable[[], object]) -> str:
    """The calls, modules and changes of module of one call."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and code.co_name not in HIDDEN:
            entered.append(code.co_filename)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    changes = sum(a != b for a, b in pairwise(entered))
    counts = f"{len(entered)} / {len(set(entered))} / {changes}"
    if "--list" not in sys.argv:
        return counts
    names = Counter(name.removeprefix(SOURCE) for name in entered)
    return "\n".join([counts, *(f"  {count:5} {name}" for name, count in names.items())])


def main() -> None:
    """Print the walks."""
    with TemporaryDirectory() as place:
        os.environ["BACKTRAIL_STATE"] = f"{place}/state"
        work = Path(place, "work")
        work.mkdir()
        for n in range(5):
            (work / f"{n}").write_text("x\n")

        def bracket(name: str) -> None:
            with session.tool("bash"):
                (work / name).write_text(f"{name} changed\n")

        with Session.create(f"sqlite:///{place}/plain.db") as session:
            session.extend([USER, ANSWER])
            session.append(ANSWER)
            print("append, no folder:  ", walk(lambda: session.append(ANSWER)))
        with Session.create(f"sqlite:///{place}/files.db", cwd=work) as session:
            session.extend([USER, ANSWER])
            print("append, with folder:", walk(lambda: session.append(ANSWER)))
            bracket("0")
            print("bracket:            ", walk(lambda: bracket("1")))
            said = session.append(USER)
            bracket("2")
            session.append(ANSWER)
            print("rewind:             ", walk(lambda: session.rewind(before=said)))


if __name__ == "__main__":
    main()
