"""The command line: which parts, how large, where the results go."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import messages, report
from .environments import CACHE, peers, prepare
from .parts import PARTS, Part, Sizes, make
from .parts.base import QUICK
from .running import Contender, Result, Runner


def say(text: str) -> None:
    """Progress, apart from the tables."""
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", file=sys.stderr, flush=True)


STARTED = time.monotonic()


def main() -> int:
    options = arguments()
    if options.read:
        measured, known, sizes = restored(options.read, options.parts or PARTS)
    else:
        quick = QUICK if options.quick else Sizes()
        sizes = dataclasses.replace(quick, all_peers=options.all)
        parts = [make(name, sizes) for name in PARTS if name in (options.parts or PARTS)]
        parts = [only(part, options.only) for part in parts]
        measured, known = measure(parts, sizes, options.rounds, options.out)
    text = report.markdown(measured, known)
    print(text)
    failed = [r for _, results in measured for r in results if r.failed]
    for result in failed:
        print(f"{result.contender.name} failed: {result.failed}", file=sys.stderr)
    if options.write_docs:
        if failed or len(measured) < len(PARTS) or sizes.append < Sizes().append:
            raise SystemExit("not written: the docs take a full run of all parts without failures")
        report.write_docs(measured, known)
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works")
    parser.add_argument("--all", action="store_true", help="load with the slowest peers too")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all numbers as JSON")
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="report on such files, run nothing"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="contenders of such names")
    parser.add_argument(
        "--write-docs", action="store_true", help="put goals and growth into the docs"
    )
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part `{min(unknown)}`; there are {', '.join(PARTS)}")
    return options


def only(part: Part, pattern: str) -> Part:
    """A part with those contenders whose names match: a run in pieces, for `--read`."""
    chosen = tuple(one for one in part.contenders if re.search(pattern, one.name))
    return dataclasses.replace(part, contenders=chosen)


def measure(
    parts: list[Part], sizes: Sizes, rounds: int, out: Path | None
) -> tuple[report.Measured, list[str]]:
    """Run all parts; `out` has what is measured so far."""
    contenders = [contender for part in parts for contender in part.contenders]
    needed = {name for c in contenders for name in (c.peer, c.starts) if name}
    if any(c.driver.startswith("trees") for c in contenders):
        # The files of all of them are the tree.
        needed |= peers().keys()
    CACHE.mkdir(exist_ok=True)
    prepare(needed, say)
    with tempfile.TemporaryDirectory(prefix="data-", dir=CACHE) as folder:
        data = Path(folder).resolve()
        if report.file_system(data) in ("tmpfs", "ramfs"):
            raise SystemExit("the data would lie in memory: syncs would mean nothing")
        say("writing the messages")
        messages.write(data / "messages.jsonl", max(sizes.log, sizes.append))
        for number in range(50):
            (data / "projects" / f"project-{number:02d}").mkdir(parents=True)
        runner = Runner(data, rounds, say)
        # The first start of each driver also leaves compiled files behind.
        drivers = sorted({c.driver for c in contenders if c.driver != "starting"})
        answers = [runner.ask(Contender(d, "ours", d, {"task": "facts"})) for d in drivers]
        versions = [", ".join(answer["version"] for answer in answers if answer)]
        known = report.facts(data, rounds, versions)
        measured = []
        for part in parts:
            measured.append((part, runner.run(part.name, part.contenders)))
            if out is not None:
                out.write_text(saved(measured, known, sizes), encoding="utf-8")
    say("done")
    return measured, known


def saved(measured: report.Measured, known: list[str], sizes: Sizes) -> str:
    """All numbers as JSON, for `--read`."""
    rows: list[dict[str, Any]] = []
    for part, results in measured:
        for result in results:
            row = dataclasses.asdict(result)
            row["contender"] = result.contender.name
            rows.append({"part": part.name, **row})
    run = {"facts": known, "sizes": dataclasses.asdict(sizes), "results": rows}
    return json.dumps(run, indent=1) + "\n"


def restored(
    paths: Sequence[Path], names: Sequence[str]
) -> tuple[report.Measured, list[str], Sizes]:
    """What `saved` wrote, for the parts asked for; what several runs have goes together."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    sizes = Sizes(**runs[0]["sizes"])
    if any(run["sizes"] != runs[0]["sizes"] for run in runs):
        raise SystemExit("these runs are of different sizes")
    measured = []
    for part in (make(name, sizes) for name in PARTS if name in names):
        results = {one.name: Result(one) for one in part.contenders}
        for row in (row for run in runs for row in run["results"] if row["part"] == part.name):
            if row["contender"] in results:
                result = results[row["contender"]]
                result.rounds += row["rounds"]
                result.absent, result.failed = row["absent"], row["failed"]
        found = [one for one in results.values() if one.rounds or one.absent or one.failed]
        if found:
            measured.append((part, found))
    *about, _ = zip(*(run["facts"] for run in runs), strict=True)
    known = [", ".join(dict.fromkeys(texts)) for texts in about]
    versions = dict.fromkeys(name for run in runs for name in run["facts"][-1].split(", ") if name)
    return measured, [*known, ", ".join(versions)], sizes


if __name__ == "__main__":
    sys.exit(main())
