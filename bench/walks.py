"""How far one has to read to follow a call: calls, modules, and changes of module.

`python -m bench.walks` prints them for an append, a bracket around one changed file, and a rewind
with files, on SQLite; with `--list` also which functions of which modules are entered. Functions of
this package that are entered in the caller's thread count, in the order in which they are. What
Python compiles into functions of their own does not, and neither do the constructors that
`_startup.frozen` has in the place of such.
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
MADE = "_startup/frozen.py"
HIDDEN = ("<genexpr>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>")
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


def walk(name: str, act: Callable[[], object]) -> None:
    """Print the calls, modules and changes of module of one call."""
    entered: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        module = code.co_filename.removeprefix(SOURCE)
        if code.co_name not in HIDDEN and module != MADE:
            entered.append((module, code.co_qualname))

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    modules = [module for module, _ in entered]
    changes = sum(a != b for a, b in pairwise(modules))
    print(f"{name:20} {len(entered)} / {len(set(modules))} / {changes}")
    if "--list" in sys.argv:
        for module in sorted(set(modules)):
            counts = Counter(function for other, function in entered if other == module)
            print(f"    {module}: {', '.join(f'{n} {what}' for what, n in counts.items())}")


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
            walk("append, no folder:", lambda: session.append(ANSWER))
        with Session.create(f"sqlite:///{place}/files.db", cwd=work) as session:
            session.extend([USER, ANSWER])
            walk("append, with folder:", lambda: session.append(ANSWER))
            bracket("0")
            walk("bracket:", lambda: bracket("1"))
            said = session.append(USER)
            bracket("2")
            session.append(ANSWER)
            walk("rewind:", lambda: session.rewind(before=said))


if __name__ == "__main__":
    main()
