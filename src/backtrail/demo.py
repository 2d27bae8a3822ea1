"""A tour in one minute: `python -m backtrail.demo`. No network, no keys.

A scripted agent talks; you see the log, a checkpoint, a rewind, an undo, a fork. It works
on files and breaks them, and they come back. A writer is killed in the middle of its work,
and another goes on where it was.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from . import Session, open_store
from .demo_files import show_files
from .events import Event
from .messages import text_of

_WRITER = """
import sys
from backtrail import Session
with Session.open(sys.argv[1], "demo") as s:
    n = 0
    while True:
        n += 1
        s.append({"role": "assistant", "content": f"line {n} of the report"})
        print(n, flush=True)
"""


def main() -> None:
    """Run the tour and say what happens."""
    folder = Path(tempfile.mkdtemp(prefix="backtrail-demo-"))
    url = f"sqlite:///{folder / 'agent.db'}"
    print(f"A store in a temporary folder: {url}\n")
    session = _talk(url)
    _go_back(session)
    _fork(session)
    session.close()
    show_files(url, folder, _say)
    _crash(url)
    print("\nNothing was lost, and nothing but the temporary folder was touched.")
    if sys.stdout.isatty():
        code = f"from backtrail import *; print(open_store('{url}').sessions())"
        print(f'Look around: python -c "{code}"')
    else:
        shutil.rmtree(folder)


def _talk(url: str) -> Session:
    _say("Two turns", "with s.turn('…') as t: t.append({…})")
    session = Session.create(url, "demo", title="A small demo", system_prompt="You are brief.")
    with session.turn("Which file starts the program?") as turn:
        turn.append({"role": "assistant", "content": "main.py does."}, usage=_usage(20, 4))
    point = session.checkpoint("before the rewrite")
    with session.turn("Rewrite everything in another language.") as turn:
        turn.append(
            {"role": "assistant", "content": "Done. 41 files changed."}, usage=_usage(40, 6)
        )
    _show(session)
    print(
        f"  checkpoint {point.label!r} points at event {point.seq}; tokens: {session.info().usage}"
    )
    return session


def _go_back(session: Session) -> None:
    _say("What would going back do?", "s.rewind('before the rewrite', dry_run=True)")
    plan = session.rewind("before the rewrite", dry_run=True)
    print(f"  it would drop {plan.events_dropped} events and keep {plan.message_count} messages")
    _say("Go back", "s.rewind('before the rewrite')")
    session.rewind("before the rewrite")
    _show(session)
    for branch in session.branches():
        print(f"  nothing is erased: {branch.message_count} messages wait in a branch")
    _say("Changed our mind", "s.undo()")
    session.undo()
    _show(session)
    _say("And again", "s.redo()")
    session.redo()
    _show(session)


def _fork(session: Session) -> None:
    _say("Try something else on the side", "other = s.fork('before the rewrite', title='plan B')")
    with session.fork("before the rewrite", title="plan B") as other:
        with other.turn("Only rename the function.") as turn:
            turn.append({"role": "assistant", "content": "Renamed, 3 lines changed."})
        print(f"  {other.info().title}: {len(other.messages())} messages", end="; ")
        print(f"the original still has {len(session.messages())}")
    _say("Find it again", "store.search('renamed')")
    for hit in session.store.search("renamed"):
        print(f"  session {hit.session_id[:8]}…, event {hit.event.seq}: {hit.snippet}")


def _crash(url: str) -> None:
    _say("A writer is killed in the middle of its work", "kill -9")
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, url], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged = 0
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged == 100:
            os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    print(f"  it had acknowledged {acknowledged} events when it died")
    _say("Another process goes on", "Session.open(url, 'demo')")
    with Session.open(url, "demo") as session:
        found = sum("of the report" in text_of(m) for m in session.messages())
        print(f"  {found} of them are there (one more may have been written, unacknowledged)")
        session.append({"role": "user", "content": "Go on."})
        print(f"  and the log goes on at event {session.info().head}")
        if found < acknowledged:
            raise SystemExit("an acknowledged event is missing")
    with open_store(url) as store:
        print(f"  store.verify() finds {len(store.verify())} problems")


def _say(what: str, code: str) -> None:
    bold, dim, plain = _codes()
    print(f"\n{bold}{what}{plain}   {dim}{code}{plain}".rstrip(" "))


def _show(session: Session) -> None:
    for event in session.history():
        if "message" in event.data:
            print(f"  {event.seq:>3}  {_who(event):<10} {text_of(event.data['message'])}")


def _who(event: Event) -> str:
    return event.kind.removesuffix("_message")


def _usage(read: int, written: int) -> dict[str, int]:
    return {"input_tokens": read, "output_tokens": written}


def _codes() -> tuple[str, str, str]:
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return "\033[1m", "\033[2m", "\033[0m"
    return "", "", ""


if __name__ == "__main__":
    main()
