"""The incidents of `tests/incidents`, against Backtrail and against shadow git, as a table.

`python -m bench.incidents`, from the root of the repository. Names of scenarios as
arguments run only these.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.incidents.catalogue import SCENARIOS
from tests.incidents.driver import Driver
from tests.incidents.known import OPEN
from tests.incidents.ours import Ours
from tests.incidents.shadow_git import ShadowGit
from tests.incidents.stage import Outcome, Scenario, perform

from .report import table

DRIVERS: tuple[type[Driver], ...] = (Ours, ShadowGit)


def run(scenario: Scenario, driver: type[Driver]) -> Outcome:
    """One scenario in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="incident-", ignore_cleanup_errors=True) as folder:
        return perform(scenario, driver, Path(folder).resolve())


def main() -> int:
    wanted = set(sys.argv[1:])
    chosen = [scenario for scenario in SCENARIOS if not wanted or scenario.name in wanted]
    unknown = wanted - {scenario.name for scenario in chosen}
    if unknown:
        raise SystemExit(f"no scenario `{min(unknown)}`")
    results = {s.name: [run(s, driver) for driver in DRIVERS] for s in chosen}
    print(table(["", "topic", *(d.name for d in DRIVERS), "why not"], _rows(chosen, results)))
    print()
    for place, driver in enumerate(DRIVERS):
        count = Counter(outcomes[place].verdict for outcomes in results.values())
        words = ", ".join(f"{count[verdict]} {verdict}" for verdict in ("pass", "fail", "cannot"))
        print(f"{driver.name}: {words}, of {len(chosen)}.")
    bad = {name for name, outcomes in results.items() if outcomes[0].verdict != "pass"}
    return 1 if bad - OPEN.keys() else 0


def _rows(chosen: list[Scenario], results: dict[str, list[Outcome]]) -> list[list[str]]:
    rows = []
    for scenario in chosen:
        outcomes = results[scenario.name]
        why = "; ".join(_reason(d, o) for d, o in zip(DRIVERS, outcomes, strict=True) if o.reason)
        verdicts = [outcome.verdict for outcome in outcomes]
        name = scenario.name.replace("_", " ")
        rows.append([name, scenario.topic, *verdicts, why[:97] + "…" if len(why) > 98 else why])
    return rows


def _reason(driver: type[Driver], outcome: Outcome) -> str:
    """Why it is not a pass, on one line."""
    text = " ".join(outcome.reason.replace("|", "/").split())
    return text if outcome.verdict == "cannot" else f"{driver.name}: {text}"


if __name__ == "__main__":
    sys.exit(main())
