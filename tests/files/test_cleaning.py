"""Collecting: what deleted sessions leave goes, what anything relies on stays, within a budget."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from backtrail import Session, SessionInfo, Store, open_store, telemetry
from backtrail.errors import DiskLow, InvalidData, NotFound
from backtrail.files import collect, materialize
from backtrail.files.changes.brackets import Runner, born, own_birth
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.contents import garbage
from backtrail.files.contents.blobs import Reference
from backtrail.files.contents.garbage import BUDGET, mark_and_sweep
from backtrail.files.depot import opened
from backtrail.files.restore.journal import Journal
from backtrail.files.restore.moves import settled
from backtrail.files.restore.plan import plan_exact
from backtrail.files.trees import EMPTY_DIGEST, Entry, digest_of, encode_tree
from backtrail.stores.wrapper import store_name

from .conftest import shell
from .world import look

DAY = 24 * 3600.0


def said(session: Session) -> None:
    session.append({"role": "user", "content": "go on"})


def worked(session: Session, root: Path, name: str, content: str | bytes) -> None:
    """A call that writes a file."""
    with session.tool("write"):
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)


def digests(store: Store) -> set[bytes]:
    with opened(store) as depot:
        return set(depot.blobs.digests())


def restored(store: Store, tree: str, into: Path) -> dict[str, bytes]:
    materialize(store, tree, into)
    found = {path: content for path, (kind, _, content) in look(into).items() if kind == "file"}
    shutil.rmtree(into)
    return found


# --- sessions that are gone --------------------------------------------------------------


def test_the_name_is_the_one_sessions_use(tmp_path: Path) -> None:
    """A store judges the references that its own sessions write."""
    for scope in ("", "team"):
        with (
            open_store(f"sqlite:///{tmp_path}/s.db", scope=scope) as store,
            Session.create(store) as session,
        ):
            assert session.parts.capture.recorder.log == (store_name(store), session.id)


def test_a_deleted_session_gives_its_contents_back(url: str, project: Path, tmp_path: Path) -> None:
    """They go; a new session that looks at the same files can go back to all it saw."""
    with open_store(url) as store, Session.create(store, "old", cwd=project) as old:
        said(old)
        worked(old, project, "gone", "only the old session knows this")
        worked(old, project, "gone", "now something else")
        (project / "gone").unlink()
        said(old)
        store.delete("old")
        assert collect(store, dry_run=True, grace=0).sessions == ("old",)
        done = collect(store, grace=0)
        assert (done.sessions, done.held, done.problems) == (("old",), False, ())
        assert done.blobs > 3
        assert digest_of(b"only the old session knows this") not in digests(store)
        with Session.create(store, "new", cwd=project) as new:
            said(new)
            point = new.checkpoint("here")
            before = look(project)
            shell(new, "rm -r src; echo changed > README", project)
            new.rewind(point)
            assert look(project) == before
            assert point.tree is not None
            assert restored(store, point.tree, tmp_path / "copy").keys() == {
                "README", "src/main.py",
            }  # fmt: skip


def test_the_index_vouches_for_nothing_that_is_gone(session: Session, project: Path) -> None:
    """Contents that went with everything else are captured again from the same files."""
    tree = session.checkpoint("first").tree
    assert tree is not None
    with opened(session.store) as depot:
        depot.blobs.drop_references(store_name(session.store))
        mark_and_sweep(depot.blobs, grace=0)
        assert list(depot.blobs.digests()) == []
    said(session)
    point = session.checkpoint("again")
    before = look(project)
    shell(session, "rm -r src README", project)
    session.rewind(point)
    assert look(project) == before


def test_what_is_written_now_is_spared(session: Session) -> None:
    """By default an hour long, whatever becomes of it."""
    with opened(session.store) as depot:
        loose = depot.blobs.put(b"not yet referred to")
    assert collect(session.store).blobs == 0
    assert loose in digests(session.store)
    assert collect(session.store, grace=0).blobs == 1


def test_a_dry_run_reports_the_same_and_changes_nothing(session: Session, project: Path) -> None:
    """As many blobs and bytes as go then."""
    worked(session, project, "big", random.Random(1).randbytes(4_000_000))
    (project / "big").unlink()
    said(session)
    session.store.delete("s")
    before = digests(session.store)
    reported = collect(session.store, grace=0, dry_run=True)
    assert digests(session.store) == before
    done = collect(session.store, grace=0)
    assert (reported.blobs, reported.bytes, reported.sessions) == (
        done.blobs,
        done.bytes,
        done.sessions,
    )
    assert reported.dry_run and not done.dry_run
    assert reported.used == pytest.approx(done.used, abs=100_000)
    assert done.to_dict()["sessions"] == ("s",)


def test_forks_keep_what_they_share(url: str, project: Path) -> None:
    """Also those made by the store alone, which refer to nothing themselves."""
    with open_store(url) as store:
        parent = Session.create(store, "parent", cwd=project)
        said(parent)
        point = parent.checkpoint("start")
        worked(parent, project, "README", "other\n")
        parent.fork(session_id="made").close()
        head = store.info("parent").head
        store.create(SessionInfo("bare", cwd=str(project)), base=("parent", head))
        store.delete("parent")
        (project / "README").write_text("third\n")
        assert collect(store, grace=0).sessions == ()
        for id in ("made", "bare"):
            with Session.resume(store, id) as fork:
                fork.rewind(point.id, mode="exact")
                assert (project / "README").read_text() == "one\ntwo\nthree\n"
            store.delete(id)
            (project / "README").write_text("third\n")
            collect(store, grace=0)
        assert digest_of(b"other\n") not in digests(store)
        parent.close()


def test_a_session_made_anew_while_it_is_judged(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under an id that was deleted: it keeps what it relies on."""
    store = session.store
    store.delete("s")
    logs, made = store.logs, list[Session]()

    def late(session_id: str) -> list[str]:
        try:
            return logs(session_id)
        except NotFound:
            if not made:
                made.append(Session.create(store, "s", cwd=project))
                said(made[0])
            raise

    monkeypatch.setattr(store, "logs", late)
    assert collect(store, grace=0).sessions == ()
    (project / "README").write_text("other\n")
    said(made[0])
    collect(store, grace=0)
    made[0].rewind(before=2, mode="exact")
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    made[0].close()


# --- several stores ----------------------------------------------------------------------


def test_stores_that_share_a_folder(tmp_path: Path, project: Path) -> None:
    """Collecting one loses nothing of the others, nor of another scope."""
    shared = str(tmp_path / "shared")
    places = [("a.db", ""), ("b.db", ""), ("a.db", "team")]
    stores = [open_store(f"sqlite:///{tmp_path}/{name}", scope=scope, blobs=shared)
              for name, scope in places]  # fmt: skip
    points = []
    for n, store in enumerate(stores):
        with Session.create(store, "same", cwd=project) as session:
            said(session)
            worked(session, project, "README", f"version {n}\n")
            points.append(session.checkpoint(f"of {n}").tree)
            worked(session, project, "README", "between\n")
    stores[0].delete("same")
    assert collect(stores[1], grace=0).sessions == ()
    assert collect(stores[0], grace=0).sessions == ("same",)
    for n in (1, 2):
        tree = points[n]
        assert tree is not None
        found = restored(stores[n], tree, tmp_path / "copy")
        assert found["README"] == f"version {n}\n".encode()
    tree = points[0]
    assert tree is not None
    with pytest.raises(NotFound):
        materialize(stores[0], tree, tmp_path / "copy")
    for store in stores:
        store.close()


def test_stores_in_memory_do_not_judge_each_other(tmp_path: Path, project: Path) -> None:
    """Two processes may call theirs the same, so in a shared folder nothing is given up."""
    shared = str(tmp_path / "shared")
    with open_store("memory:", blobs=shared) as one, open_store("memory:", blobs=shared) as two:
        with Session.create(one, "s", cwd=project) as session:
            said(session)
            point = session.checkpoint("x")
        (project / "README").write_text("other\n")
        with Session.create(two, "t", cwd=project) as session:
            said(session)
        assert collect(two, grace=0).sessions == ()
        assert point.tree is not None
        assert "README" in restored(one, point.tree, tmp_path / "copy")


def test_a_negative_grace_is_refused() -> None:
    """It would mean the future."""
    with open_store("memory:") as store, pytest.raises(InvalidData):
        collect(store, grace=-1)


# --- while others work -------------------------------------------------------------------

_LOOP = """
import sys, time
from backtrail import open_store
from backtrail.files import collect
with open_store(sys.argv[1]) as store:
    print("ready", flush=True)
    while True:
        collect(store, grace=0)
"""


def test_a_session_writes_while_another_process_collects(tmp_path: Path, project: Path) -> None:
    """Nothing that any event names is lost, even with no grace at all."""
    url = f"sqlite:///{tmp_path}/store.db"
    dice = random.Random(3)
    seen: dict[str, dict[str, bytes]] = {}
    with Session.create(url, "s", cwd=project) as session:
        said(session)
        loop = subprocess.Popen([sys.executable, "-c", _LOOP, url], stdout=subprocess.PIPE)
        assert loop.stdout is not None
        loop.stdout.readline()
        end = time.monotonic() + 6
        n = 0
        while time.monotonic() < end:
            n += 1
            with Session.create(session.store, f"short-{n}", cwd=project) as short:
                worked(short, project, f"f{dice.randrange(5)}", dice.choice("abcdef") * 50)
            session.store.delete(f"short-{n}")
            worked(session, project, f"f{dice.randrange(5)}", dice.choice("abcdef") * 50)
            said(session)
            tree = session.checkpoint(str(n)).tree
            assert tree is not None
            seen[tree] = {path: content for path, (kind, _, content) in look(project).items()
                          if kind == "file"}  # fmt: skip
        assert loop.poll() is None
        loop.kill()
        loop.wait()
        loop.stdout.close()
        assert n > 5
        for tree, files in seen.items():
            assert restored(session.store, tree, tmp_path / "copy") == files


def test_a_sweep_in_the_middle_of_a_scan(
    session: Session, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the scan believed to be stored is stored again before anything refers to it."""
    check = garbage.check_floor
    swept: list[int] = []

    def sweep_first(path: Path) -> int:
        if not swept:
            with opened(session.store) as depot:
                depot.blobs.drop_references(store_name(session.store))
                swept.append(mark_and_sweep(depot.blobs, grace=0).blobs)
        return check(path)

    monkeypatch.setattr(garbage, "check_floor", sweep_first)
    (project / "new").write_text("new")
    said(session)
    assert swept[0] > 2
    tree = list(session.events())[-1].data["tree"]
    assert restored(session.store, tree, tmp_path / "copy").keys() == {
        "README",
        "new",
        "src/main.py",
    }
    point = session.checkpoint("after")
    before = look(project)
    shell(session, "rm -r src README", project)
    session.rewind(point)
    assert look(project) == before


def test_a_call_keeps_the_trees_that_others_found(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """Its changes are read from another session's scans, which may be deleted."""
    store = session.store
    with session.tool("outer"):
        (project / "README").write_text("by the outer call\n")
        with Session.create(store, "other", cwd=project) as other:
            said(other)
            worked(other, project, "theirs", "other")
        (project / "src" / "main.py").write_text("outer")
    store.delete("other")
    collect(store, grace=0)
    # Another one, because this one has read these trees and remembers them.
    with Session.resume(store, "s") as again:
        again.rewind(before=2)
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    assert (project / "theirs").read_text() == "other"


def left_by(session: Session, runner: Runner, days: float) -> None:
    """A call that began so many days ago, and was not ended."""
    ago = time.time() - days * DAY
    with opened(session.store) as depot, mock.patch.object(time, "time", lambda: ago):
        (place,) = depot.catalogue.places()
        depot.catalogue.lines.open_bracket(place.n, "another", None, None, "bash", None, runner)


@pytest.mark.parametrize("days, given_up", [(6, 0), (8, 1)])
def test_a_call_that_a_crash_left(
    session: Session, project: Path, days: int, given_up: int
) -> None:
    """It keeps what changed since it began for its session to record, but not for ever."""
    store = session.store
    with subprocess.Popen(["sleep", "60"]) as process:
        left_by(session, Runner(process.pid, born(process.pid)), days)
        with Session.create(store, "other", cwd=project) as other:
            worked(other, project, "theirs", "only the other knows this")
            worked(other, project, "theirs", "now something else")
        (project / "theirs").unlink()
        said(session)
        process.kill()
    store.delete("other")
    planned = collect(store, grace=0, dry_run=True)
    done = collect(store, grace=0)
    assert (planned.calls, planned.blobs) == (done.calls, done.blobs)
    assert done.calls == given_up
    assert (digest_of(b"only the other knows this") in digests(store)) == (not given_up)
    with opened(store) as depot:
        assert len(depot.catalogue.lines.calls()) == 1 - given_up
    assert collect(store, grace=0).calls == 0


def test_a_long_call_is_not_given_up(session: Session, project: Path) -> None:
    """Whatever its age, as long as its process lives."""
    pid = os.getpid()
    left_by(session, Runner(pid, own_birth(pid)), 30)
    assert collect(session.store, grace=0).calls == 0
    with opened(session.store) as depot:
        assert len(depot.catalogue.lines.calls()) == 1


def test_a_restore_that_was_cut_short_keeps_its_contents(session: Session, project: Path) -> None:
    """What finishes it needs them, though no tree holds them."""
    with opened(session.store) as depot:
        merged = depot.blobs.put(b"merged")
        entry = Entry("file", 0o644, 6, merged)
        tree = depot.blobs.put(encode_tree({b"README": entry}))
        plan = plan_exact(depot.blobs.get, depot.blobs.put(encode_tree({})), tree)
        plan = settled(depot.blobs.get, plan)
        journal = Journal("j", plan, EMPTY_DIGEST, session.store.url, "", "s", [])
        catalogue: Catalogue = depot.catalogue
        place = catalogue.places()[0]
        catalogue.write_journal(place, journal.encoded())
        collect(session.store, grace=0)
        assert depot.blobs.has([merged, tree]) == {merged}
        catalogue.drop_journal(place.n)
        collect(session.store, grace=0)
        assert not depot.blobs.has([merged])


# --- the budget --------------------------------------------------------------------------


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many days pass."""
    clock, passed = time.time_ns, [0.0]

    def now() -> int:
        return clock() + round(passed[0] * 1e9)

    monkeypatch.setattr(time, "time_ns", now)
    monkeypatch.setattr(time, "time", lambda: now() / 1e9)

    def wait(days: float) -> None:
        passed[0] += days * DAY

    return wait


def test_the_oldest_points_go_first(
    session: Session, project: Path, later: Callable[[float], None]
) -> None:
    """Never labelled ones, never the last week; a rewind to one that is gone says so."""
    dice, size = random.Random(4), 300_000
    versions = [dice.randbytes(size) for _ in range(6)]
    seqs = []
    for n, version in enumerate(versions):
        worked(session, project, "big", version)
        said(session)
        seqs.append(session.store.info("s").head)
        if n == 1:
            label = session.checkpoint("release")
        if n == 3:
            later(8)
    later(1)
    limit = 5 * size
    reported = collect(session.store, grace=0, budget=limit, dry_run=True)
    done = collect(session.store, grace=0, budget=limit)
    assert (reported.points, reported.blobs) == (done.points, done.blobs)
    assert done.points >= 2
    assert not done.over_budget and done.used <= limit
    there = digests(session.store)
    # The third was still there when the last week began.
    kept = [n for n, version in enumerate(versions) if digest_of(version) in there]
    assert kept == [1, 3, 4, 5]
    before = look(project)
    with pytest.raises(NotFound):
        session.rewind(seqs[0], mode="exact")
    assert look(project) == before
    session.rewind(label, mode="exact")
    assert (project / "big").read_bytes() == versions[1]


def test_a_label_keeps_nothing_once_it_is_deleted(
    session: Session, project: Path, later: Callable[[float], None]
) -> None:
    """The contents of a deleted checkpoint are those of an automatic point."""
    dice, size = random.Random(6), 300_000
    versions = [dice.randbytes(size) for _ in range(3)]
    for n, version in enumerate(versions):
        worked(session, project, "big", version)
        said(session)
        if n == 0:
            session.checkpoint("release")
        later(9)
    collect(session.store, grace=0, budget=2 * size)
    assert digest_of(versions[0]) in digests(session.store)
    session.delete_checkpoint("release")
    assert collect(session.store, grace=0, budget=2 * size).points >= 1
    assert digest_of(versions[0]) not in digests(session.store)
    assert digest_of(versions[2]) in digests(session.store)


def test_what_may_not_go_is_too_much(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result says so, and capture stops until there is room; the conversation goes on."""
    worked(session, project, "big", random.Random(5).randbytes(400_000))
    done = collect(session.store, grace=0, budget=100_000)
    assert done.over_budget and done.points == 0
    assert done.used > done.budget == 100_000
    monkeypatch.setenv(BUDGET, "100000")
    (project / "README").write_text("not captured")
    said(session)
    assert any("collect" in problem.detail for problem in session.problems)
    with pytest.raises(DiskLow, match="collect"):
        session.rewind(before=2)
    (project / "big").unlink()
    monkeypatch.delenv(BUDGET)
    said(session)
    assert "tree" in list(session.events())[-1].data


def test_what_no_event_names_is_as_old_as_what_follows(
    session: Session, project: Path, later: Callable[[float], None]
) -> None:
    """A look at the files leaves a tree that the budget may give up in time."""
    big = random.Random(6).randbytes(300_000)
    (project / "big").write_bytes(big)
    session.diff()
    (project / "big").unlink()
    (project / "README").write_text("changed")
    said(session)
    assert collect(session.store, grace=0, budget=200_000).points == 0
    later(8)
    (project / "README").write_text("changed again")
    said(session)
    done = collect(session.store, grace=0, budget=200_000)
    assert done.points >= 1
    assert digest_of(big) not in digests(session.store)


def test_others_points_count_but_stay(
    session: Session, project: Path, later: Callable[[float], None]
) -> None:
    """Only the sessions of this store are asked to give something up."""
    big = random.Random(7).randbytes(300_000)
    with opened(session.store) as depot:
        entry = Entry("file", 0o644, len(big), depot.blobs.put(big))
        root = depot.blobs.put(encode_tree({b"big": entry}))
        depot.blobs.write([], [Reference("another store", "s", root)])
    later(30)
    done = collect(session.store, grace=0, budget=100_000)
    assert done.over_budget
    assert digest_of(big) in digests(session.store)


# --- problems ----------------------------------------------------------------------------


def test_a_missing_tree_is_reported_and_costs_nothing_else(session: Session, project: Path) -> None:
    """With the session that relies on it."""
    first = session.checkpoint("x").tree
    assert first is not None
    worked(session, project, "README", "two\n")
    with opened(session.store) as depot:
        depot.blobs.remove([bytes.fromhex(first)])
    done = collect(session.store, grace=0)
    assert [(p.session_id, p.what) for p in done.problems] == [("s", "missing tree")]
    assert not done.held


def test_collecting_is_reported(session: Session, project: Path) -> None:
    """With what went, for listeners."""
    worked(session, project, "x", "x")
    (project / "x").unlink()
    said(session)
    session.store.delete("s")
    heard: list[telemetry.Signal] = []
    stop = telemetry.listen(heard.append)
    try:
        done = collect(session.store, grace=0)
    finally:
        stop()
    (signal,) = [signal for signal in heard if signal.name == "files.collect"]
    assert signal.measurements["blobs"] == done.blobs > 0
    assert signal.measurements["duration"] > 0
    assert signal.metadata["sessions"] == ["s"]
    assert signal.metadata["over_budget"] is False


def test_the_budget_holds_for_a_large_file_that_a_call_declares(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One so large that parts of it are stored while it is read. No more of them are."""
    monkeypatch.setenv(BUDGET, "3MB")
    dice = random.Random(6)
    for _ in range(4):
        with session.tool("write", paths=["big"]):
            (project / "big").write_bytes(dice.randbytes(9 << 20))
    assert any("may take" in problem.detail for problem in session.problems)
    with opened(session.store) as depot:
        assert depot.blobs.used() < 20 << 20


def test_a_large_import_stops_at_the_floor(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the disk is full, and not behind it."""
    dice = random.Random(7)
    for n in range(8):
        (project / f"big{n}").write_bytes(dice.randbytes(9 << 20))
    full = os.statvfs_result((4096, 4096, 10**9, 9, 9, 0, 0, 0, 0, 255))
    real, asked = os.statvfs, []

    def filling(path: str) -> os.statvfs_result:
        asked.append(path)
        return real(path) if len(asked) < 3 else full

    monkeypatch.setattr(os, "statvfs", filling)
    said(session)
    assert any("must stay free" in problem.detail for problem in session.problems)
    with opened(session.store) as depot:
        assert depot.blobs.used() < 40 << 20
