"""`doctor`: whether all is set up well, and what to do where it is not."""

from __future__ import annotations

import os
import shutil
import stat
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .._startup.frozen import dataclass
from .._startup.shell import quoted
from ..errors import BacktrailError
from ..stores.wrapper import unwrapped
from .allow import refuse_agents
from .call import Call
from .verbs import Command
from .wording import ago, plural, short, size

if TYPE_CHECKING:
    from ..files.changes.brackets import Place
    from ..stores.base import Store

State = Literal["ok", "warning", "bad"]

_SQLITE = (3, 51, 3)
"""The first version without the damage that a reset of the log could do."""
_STYLES = {"ok": "green", "warning": "yellow", "bad": "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, how it is, and what to do."""

    name: str
    state: State
    detail: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """The check as JSON."""
        return {
            "name": self.name, "state": self.state, "detail": self.detail, "advice": self.advice
        }  # fmt: skip


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--repair",
        action="store_true",
        help="finish restores that were set aside, or give them up; end calls that are open; "
        "remove what was left behind",
    )


def _repaired(call: Call) -> Iterator[Check]:
    """Repair first, so that the checks show how it is then."""
    from ..files.restore.repairs import repair

    refuse_agents(call, "doctor --repair")
    for done in repair(call.store):
        yield Check("repaired", "ok", done)


def _run(call: Call) -> int:
    checks = list(_repaired(call)) if call.arguments.repair else []
    checks += _checks(call)
    if call.out.as_json:
        call.out.data({"checks": [check.to_dict() for check in checks]})
    else:
        for check in checks:
            call.out.spans(
                (f"{check.state:<8}", _STYLES[check.state]), (f"{check.name:<12}", "bold"),
                (check.detail, ""),
            )  # fmt: skip
            if check.advice:
                call.out.line(f"{'':<20}{check.advice}", "cyan")
    return int(any(check.state == "bad" for check in checks))


def _checks(call: Call) -> Iterator[Check]:
    """Every check; one that fails keeps none of the others from being made."""
    try:
        origin = call.settings.values["store"].origin
        yield Check("settings", "ok", f"the store is named by: {origin}")
        for warning in call.settings.warnings:
            yield Check("settings", "warning", warning, "backtrail config show")
    except BacktrailError as error:
        yield Check("settings", "bad", str(error), "mend that file")
        return
    yield _sqlite()
    try:
        store = call.store
        if unwrapped(store).url.startswith("postgresql:"):
            yield from _server(store)
            yield from _hooks(call)
            return
        count = len(store.sessions())
    except (BacktrailError, OSError) as error:
        yield Check("store", "bad", str(error), "name another with --store")
        return
    yield Check("store", "ok", f"{store.url} opens, {plural(count, 'session')}")
    yield from _writable(store)
    yield _permissions(store)
    yield _disk(store)
    yield from _contents(store)
    yield from _open_calls(store)
    yield _moved(store)
    yield from _captured(store)
    yield from _hooks(call)


def _server(store: Store) -> Iterator[Check]:
    """A store on a server; what is local to the machine of each session is not looked at."""
    from ..stores.postgres import PostgresStore
    from ..stores.postgres.health import health

    inner = unwrapped(store)
    assert isinstance(inner, PostgresStore)
    found = health(inner.link, inner.scope)
    yield Check("store", "ok", f"{store.url} opens")
    for name, state, detail, advice in found:
        yield Check(name, state, detail, advice)
    yield from _open_calls(store)


def _sqlite() -> Check:
    import apsw

    version = apsw.sqlite_lib_version()
    known = tuple(int(part) for part in version.split("."))
    if known >= _SQLITE:
        return Check("sqlite", "ok", version)
    return Check("sqlite", "bad", f"{version} can damage a database", "install a newer `apsw`")


def _writable(store: Store) -> Iterator[Check]:
    """Places of the store that can only be read: nothing is recorded there, or taken back."""
    places = [*store.places, *([store.contents] if store.contents is not None else [])]
    closed = [place for place in places if place.exists() and not os.access(place, os.W_OK)]
    if closed:
        yield Check(
            "store", "bad", f"{closed[0]} cannot be written: it can be read, and no more",
            "check who owns it and its mode, or name another with --store",
        )  # fmt: skip


def _permissions(store: Store) -> Check:
    """What others on this machine may read."""
    places = [*store.places, *([store.contents] if store.contents is not None else [])]
    wide: list[Path] = []
    for place in places:
        for path in (place, *(place.rglob("*") if place.is_dir() else ())):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            if mode & 0o077 and not stat.S_ISLNK(mode):
                wide.append(path)
    if not wide:
        return Check("permissions", "ok", "only you can read the store")
    few = ", ".join(str(path) for path in wide[:3])
    return Check(
        "permissions", "bad", f"others can read {plural(len(wide), 'path')}: {few}",
        f"chmod -R go-rwx {wide[0] if len(wide) == 1 else places[0]}",
    )  # fmt: skip


def _disk(store: Store) -> Check:
    from ..files.contents.garbage import free_floor

    place = store.contents or next(iter(store.places), None)
    while place is not None and not place.exists():
        place = place.parent
    if place is None:
        return Check("disk", "ok", "this store is in memory")
    free, floor = shutil.disk_usage(place).free, free_floor(place)
    if free < floor:
        text = f"{size(free)} free, {size(floor)} must stay so: no files are captured"
        return Check("disk", "bad", text, "make room, or `backtrail gc`")
    return Check("disk", "ok" if free > 2 * floor else "warning", f"{size(free)} free")


def _contents(store: Store) -> Iterator[Check]:
    """The budget, and restores that were cut short."""
    from ..files.contents.garbage import default_budget
    from ..files.depot import has_contents, opened
    from ..files.names import shown

    if not has_contents(store):
        yield Check("contents", "ok", "no files were captured yet")
        return
    try:
        with opened(store) as depot:
            used, limit = depot.blobs.used(), default_budget(depot.folder)
            places = depot.catalogue.places()
            waiting = [p for p in places if depot.catalogue.journal(p.n) is not None]
            known = [(p, depot.catalogue.set_aside_of(p.n)) for p in places]
            aside = [(place, found[0]) for place, found in known if found is not None]
    except (BacktrailError, OSError) as error:
        yield Check("contents", "bad", str(error), "`backtrail verify` shows more")
        return
    amount = f"{size(used)} of {size(limit)} for contents of files"
    if used > limit:
        yield Check("budget", "bad", f"{amount}: no files are captured", "backtrail gc")
    else:
        yield Check("budget", "ok" if used < limit * 0.9 else "warning", amount)
    if not waiting and not aside:
        yield Check("journals", "ok", "no restore was cut short")
    for place, why in aside:
        yield Check(
            "journals", "bad", f"a restore in {shown(place.path)} was set aside: {why}",
            "`backtrail doctor --repair` tries again, or gives it up",
        )  # fmt: skip
    for place in places:
        if _is_another(place):
            yield Check(
                "folders", "warning", f"{shown(place.path)} is not the folder that was captured",
                "if it was made anew: `cd` there and `backtrail relocate -s SESSION`",
            )  # fmt: skip
    for place in waiting:
        yield Check(
            "journals", "warning", f"a restore in {shown(place.path)} was cut short",
            "the next look at that folder finishes it: `cd` there and `backtrail status`; "
            "if it is another folder now, `backtrail relocate` gives the restore up",
        )  # fmt: skip


def _open_calls(store: Store) -> Iterator[Check]:
    """Calls under way, or left open: what happens meanwhile is shared with them."""
    from ..files.restore.repairs import listed

    try:
        found = listed(store)
    except (BacktrailError, OSError) as error:
        yield Check("calls", "bad", str(error), "`backtrail verify` shows more")
        return
    if all(call.over for call in found):
        yield Check("calls", "ok", "no call is open")
    for call in found:
        command = "backtrail doctor --repair"
        if call.store and call.url != "memory:":
            # Only its own store knows what it did, and ends it.
            command += f" --store {quoted(call.url) if call.url else 'URL'}"
        advice = f"`{command}` ends it"
        if call.store and not call.url:
            advice += f", with the URL of the store whose id is {call.store}"
        if call.over:
            advice = f"the session's next prompt, `undo` or `rewind` notes its end, or `{command}`"
        elif call.lives:
            advice = f"if it is not under way: {advice}"
        yield Check("calls", "ok" if call.lives else "warning", str(call), advice)


def _is_another(place: Place) -> bool:
    """Whether a path that was captured leads to another directory now."""
    from ..files.workspace.roots import identity

    try:
        fd = os.open(place.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        # Gone, which is reported for each session.
        return False
    try:
        return not identity(fd).is_same(place.identity)
    finally:
        os.close(fd)


def _moved(store: Store) -> Check:
    """Sessions whose folder is gone."""
    gone = [i for i in store.sessions() if i.root is not None and not Path(i.root).is_dir()]
    if not gone:
        return Check("folders", "ok", "every session's folder is there")
    first = gone[0]
    return Check(
        "folders", "warning",
        f"the folders of {plural(len(gone), 'session')} are gone, such as {first.root}",
        f"if it was moved: backtrail relocate NEW-FOLDER -s {short(first.id)}",
    )  # fmt: skip


def _captured(store: Store) -> Iterator[Check]:
    """What the latest session here did not capture."""
    from ..session.uncaptured import logged, whole
    from .nearby import around
    from .plan import row_line

    try:
        _, info = around(store)
        rows = [] if info is None else whole(store, info)
        lost = [] if info is None else logged(store, info)
    except (BacktrailError, OSError) as error:
        yield Check("captured", "bad", str(error), "`backtrail verify` shows more")
        return
    if info is None:
        return
    count = f"{plural(len(rows), 'path')} not captured in the latest session here"
    if not lost:
        yield Check("captured", "ok", count if rows else "all, in the latest session here")
        return
    few = "; ".join(row_line(row) for row in lost[:3])
    yield Check("captured", "warning", f"{count}: {few}", f"backtrail status {short(info.id)}")


def _hooks(call: Call) -> Iterator[Check]:
    """What installed hooks missed."""
    from ..exchange.hooks.places import folder_of
    from ..exchange.hooks.small_files import read_misses

    off = call.settings.why_unrecorded(Path.cwd())
    if off is not None:
        text = f"hooks are switched off here: {off}"
        yield Check("hooks", "warning", text, "`backtrail config show`")
        return
    try:
        missed = read_misses(folder_of(call.store))
    except OSError as error:
        why = f"they can note nothing in {error.filename}: {error.strerror}"
        yield Check("hooks", "bad", why, "check who owns the store and its mode")
        return
    if not missed:
        yield Check("hooks", "ok", "nothing was missed")
        return
    last = missed[-1]
    text = f"{plural(len(missed), 'event')} missed, the last {ago(last.ts)}: {last.why}"
    yield Check("hooks", "warning", text, "backtrail hooks status")


COMMANDS = {
    "doctor": Command(
        _options,
        _run,
        """
        backtrail doctor
        backtrail doctor --repair
        backtrail doctor --json
        """,
        about="The exit code is 1 if anything is bad.",
    )
}
