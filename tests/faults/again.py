"""Strike one point of a script again, as a sweep of the torture tests did.

    python -m tests.faults.kill SCRIPT --point N --seed M

SCRIPT is one of those in `script.py`, or `rewind`. What a failed test prints as "again" is such
a command with all that belongs to it. Exit codes: 0 the promises hold, 1 one is broken.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path

from tests.faults import restore_variants, variants
from tests.faults.conftest import MEMORY
from tests.faults.kill import Sweep, Violation
from tests.faults.restoring import Scene, erase
from tests.faults.rewinds import SYNCS
from tests.faults.rewinds import Sweep as Rewinds
from tests.faults.script import SCRIPTS
from tests.faults.variants import Broken


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    made = argparse.ArgumentParser("python -m tests.faults.kill", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("script", choices=[*SCRIPTS, "rewind"], metavar="SCRIPT",
                      help=", ".join([*map(repr, SCRIPTS), "'rewind'"]))  # fmt: skip
    made.add_argument("--point", type=int, required=True, help="the call at which to die")
    made.add_argument("--seed", type=int, required=True, help="decides how much of a write lands")
    made.add_argument("--broken", help="a variant that breaks a promise, to see the sweep bite")
    jsonl = made.add_argument_group("scripts of a JSONL store")
    jsonl.add_argument("--written", dest="durability", action="store_const", const="written")
    jsonl.add_argument("--synced", dest="durability", action="store_const", const="synced")
    jsonl.add_argument("--twice", action="store_true", help="kill the recovery, too")
    made.set_defaults(durability="written")
    rewind = made.add_argument_group("rewind")
    rewind.add_argument("--store", choices=["jsonl", "sqlite"], default="jsonl")
    rewind.add_argument("--way", choices=list(SYNCS), default="renameat2")
    rewind.add_argument("--undo", action="store_true", help="then take the rewind back")
    rewind.add_argument("--person", action="store_true", help="a person works between")
    rewind.add_argument("--second", type=int, help="kill the recovery at this call")
    return made


def broken_by_name(name: str | None, plain: Broken, source: object) -> Broken:
    """A variant of a module by its name; without one, the plain way."""
    if name is None:
        return plain
    found = getattr(source, name, None)
    if found is None:
        raise SystemExit(f"there is no variant `{name}` in {source}")
    chosen: Broken = found
    return chosen


def strike(options: argparse.Namespace, folder: Path) -> str:
    """Strike the point, and say what came of it."""
    point, seed = options.point, options.seed
    if options.script != "rewind":
        broken = broken_by_name(options.broken, variants.sound, variants)
        sweep = Sweep(folder, options.script, options.durability, broken)
        calls = sweep.length()
        _within(point, calls)
        sweep.strike(point, seed, again=options.twice)
        return f"point {point} of {calls}: {'over before it' if sweep.over else 'killed'}"
    broken = broken_by_name(options.broken, SYNCS[options.way], restore_variants)
    rewinds = Rewinds(Scene(folder, options.store, broken), seed)
    _within(point, len(rewinds.calls))
    if options.person:
        rewinds.strike_with_person(point)
    elif options.second:
        rewinds.strike_again(point, options.second)
    else:
        rewinds.strike(point, undo=options.undo)
    return f"point {point} of {len(rewinds.calls)}: {dict(+rewinds.states)}"


def _within(point: int, calls: int) -> None:
    if not 1 <= point <= calls:
        raise SystemExit(f"the script makes {calls} calls: --point is 1 to {calls}")


def main(words: list[str] | None = None) -> int:
    """Run the command line."""
    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
    options = parser().parse_args(words)
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="backtrail-", dir=memory) as place:
        os.environ["BACKTRAIL_STATE"] = f"{place}/state"
        folder = Path(place, "scene")
        folder.mkdir()
        try:
            print(f"the promises hold at {strike(options, folder)}")
        except Violation as found:
            print(f"broken: {found}", *found.__notes__, sep="\n", file=sys.stderr)
            return 1
        finally:
            erase(folder)
    return 0
