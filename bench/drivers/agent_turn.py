"""A scripted turn of the built-in agent, recorded and not, and how soon a delta arrives."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from protocol import Job, Numbers, check, clock, percentile, serve

from backtrail import AsyncSession, Delta, Session
from backtrail.agent.loop import Loop
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.tools import tools_named
from backtrail.session.turns import LiveTurn

CALLS = 10
TURNS = 12
SCANS = 10


def turn(job: Job) -> Numbers:
    """Ten calls that change a file each, on a store and on `null:`, turn by turn."""
    kept, null = (
        Session.open(url, "s", cwd=_build(Path(job["folder"], name), n), agent=_agent())
        # Without a record, files that are not changed are not looked at.
        for url, name, n in ((_url(job), "kept", job["n"]), ("null:", "null", 0))
    )
    with kept, null:
        _turn(kept, job["tool"], 0)  # with the first scan of the directory
        _turn(null, job["tool"], 0)
        spent = [
            (_turn(kept, job["tool"], number), _turn(null, job["tool"], number))
            for number in range(1, TURNS + 1)
        ]
        for event in kept.events(kinds=("tool_result",)):
            if "before" not in event.data.get("files", {}):
                raise ValueError(f"the call of event {event.seq} was not captured")
        scan = statistics.median(_scan(kept) for _ in range(SCANS))
    recorded, plain = (statistics.median(times) for times in zip(*spent, strict=True))
    each = (recorded - plain) / CALLS
    allowed = 2 * scan + 4 if job["tool"] == "bash" else 3
    return {"ms": each, "turn": recorded, "null": plain, "scan": scan, "growth": each / allowed}


def _url(job: Job) -> str:
    place = Path(job["folder"], "store")
    return f"file:{place}" if job["store"] == "file" else f"sqlite:///{place}.db"


def _build(root: Path, n: int) -> Path:
    """Files of 4 KB, twenty a folder: those that are changed, and others up to `n`."""
    for number in sorted({*range(n), *(_changed(at) for at in range(CALLS))}):
        path = root / _name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = 'old'\nname = {number}\n" + "# a line of a file\n" * 210)
    return root


def _name(number: int) -> str:
    return f"folder-{number // 20:03d}/file-{number % 20:02d}.py"


def _changed(at: int) -> int:
    return at * 150 + 7


def _agent() -> Loop:
    return Loop(ScriptedModel(), tools_named("all"), Permissions("trusted"))


def _turn(session: Session, tool: str, number: int) -> float:
    """Milliseconds of one turn, the first of its conversation, its script made before."""
    assert isinstance(session.agent, Loop)
    assert isinstance(session.agent.model, ScriptedModel)
    calls = [_call(tool, number, at) for at in range(CALLS)]
    session.agent.model.replies += [*calls, "All done."]
    time.sleep(0.05)  # a file written a moment ago is looked at twice
    begin = clock()
    result = session.send(f"Change ten files, turn {number}.")
    took = (clock() - begin) / 1e6
    check(len(session.messages()), 2 * CALLS + 2)
    failed = [e for e in session.events(kinds=("tool_result",)) if e.data.get("error")]
    if failed or result.exit_reason != "end_turn" or result.event is None:
        raise ValueError(f"the turn failed: {failed or result}")
    session.rewind(before=result.event, scope="conversation")
    return took


def _call(tool: str, number: int, at: int) -> dict[str, Any]:
    path = _name(_changed(at))
    if tool == "bash":
        input = {"command": f"echo '# turn {number}' >> {path}"}
    else:
        old, new = f"'{number or 'old'}'", f"'{number + 1}'"
        input = {"path": path, "old_string": f"value = {old}", "new_string": f"value = {new}"}
    function = {"name": tool, "arguments": json.dumps(input)}
    call = {"id": f"call-{number}-{at}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _scan(session: Session) -> float:
    """Milliseconds of a look at the directory, with nothing changed, after a process ran."""
    subprocess.run(["bash", "-c", "true"], check=True)
    begin = clock()
    session.parts.capture.needed().scan(session.parts.capture.recorder.log, session.store)
    return (clock() - begin) / 1e6


# --- deltas ------------------------------------------------------------------------------


def delta(job: Job) -> Numbers:
    """From the moment a delta is yielded to that when a subscriber in a thread has it."""
    late: list[float] = []

    def agent(turn: LiveTurn) -> Iterator[object]:
        for _ in range(job["times"]):
            time.sleep(0.001)
            yield Delta("text_delta", {"at": clock()})
        yield {"role": "assistant", "content": "Done."}

    with Session.open(_url(job), "s", agent=agent) as session, session.subscribe() as heard:

        def listen() -> None:
            for item in heard:
                if isinstance(item, Delta) and not _took(item, late):
                    return

        listener = threading.Thread(target=listen)
        listener.start()
        session.send("Talk.")
        listener.join()
    return _late(late, job["times"])


def delta_async(job: Job) -> Numbers:
    """The same for a task of the loop that the agent runs on."""
    late: list[float] = []

    async def agent(turn: LiveTurn) -> AsyncIterator[object]:
        for _ in range(job["times"]):
            await asyncio.sleep(0.001)
            yield Delta("text_delta", {"at": clock()})
        yield {"role": "assistant", "content": "Done."}

    async def main() -> None:
        async with await AsyncSession.open(_url(job), "s", agent=agent) as session:
            heard = session.subscribe()
            ready = asyncio.Event()

            async def listen() -> None:
                async with heard:
                    ready.set()
                    async for item in heard:
                        if isinstance(item, Delta) and not _took(item, late):
                            return

            listener = asyncio.create_task(listen())
            await ready.wait()
            await session.send("Talk.")
            await listener

    asyncio.run(main())
    return _late(late, job["times"])


def _took(item: Delta, late: list[float]) -> bool:
    """Note how late a delta is; False for the last one."""
    if item.type == "text_delta":
        late.append((clock() - item.data["at"]) / 1e6)
    return item.type != "done"


def _late(late: list[float], expected: int) -> Numbers:
    check(len(late), expected)
    return {"ms": statistics.median(late), "p99": percentile(late, 0.99)}


if __name__ == "__main__":
    serve(turn, delta, delta_async)
