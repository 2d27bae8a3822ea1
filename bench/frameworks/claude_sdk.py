"""Claude Agent SDK: appends of entries, and the resume of a long transcript, on SQLite."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from backtrail.adapters.claude_sdk import BacktrailSessionStore

KEY: Any = {"project_key": "p", "session_id": "s"}


def entry(n: int) -> dict[str, Any]:
    """An entry of a kilobyte."""
    message = {"role": "user", "content": f"{n} " + "x" * 700}
    return {"type": "user", "uuid": f"u{n}", "parentUuid": f"u{n - 1}", "message": message}


async def main() -> None:
    """3,000 appends one by one, then 10,000 entries loaded."""
    with tempfile.TemporaryDirectory() as folder:
        store: Any = BacktrailSessionStore(f"sqlite:///{folder}/s.db")
        times: list[float] = []
        for n in range(3000):
            began = time.perf_counter()
            await store.append(KEY, [entry(n)])
            times.append(time.perf_counter() - began)
        first, last = times[100:600], times[-500:]
        print(json.dumps({"row": "append_p50_us", "ours": round(statistics.median(times) * 1e6)}))
        growth = statistics.median(last) / statistics.median(first)
        print(json.dumps({"row": "append_growth", "ours": round(growth, 2)}))
        for at in range(3000, 10_000, 500):
            await store.append(KEY, [entry(n) for n in range(at, at + 500)])
        file = Path(folder, "s.jsonl")
        file.write_text("".join(json.dumps(entry(n)) + "\n" for n in range(10_000)))
        began = time.perf_counter()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        theirs = time.perf_counter() - began
        began = time.perf_counter()
        loaded = await store.load(KEY)
        ours = time.perf_counter() - began
        assert len(loaded) == len(lines) == 10_000
        row = {"row": "load_10000_ms", "ours": round(ours * 1e3), "theirs": round(theirs * 1e3)}
        print(json.dumps(row))


if __name__ == "__main__":
    anyio.run(main)
