"""Purging: what is erased cannot be found in any file of the store, and the rest is whole."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from backtrail import Session, SessionInfo, open_store, purge, telemetry
from backtrail.errors import InvalidData, NotFound, SessionBusy, Unsafe
from backtrail.events import NewEvent
from backtrail.files import collect, verify
from backtrail.files.changes.brackets import Runner, born
from backtrail.files.contents.rows import Packed, unpack
from backtrail.files.depot import opened
from backtrail.files.trees import digest_of

TEXT = "hunter2-correct-horse"
SECRET = random.Random(9).randbytes(3000)
"""Cannot be compressed, so it stands in the file as it is."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory beside the store."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "README").write_text("one\n")
    return root


def contents(tmp_path: Path) -> Iterator[bytes]:
    """Every content in blobs.db, read without the library's readers."""
    for path in tmp_path.rglob("blobs.db"):
        connection = sqlite3.connect(path)
        query = "SELECT size, codec, chunks, content FROM blobs"
        for size, codec, chunks, content in connection.execute(query).fetchall():
            if chunks is not None:
                rows = connection.execute(
                    "SELECT content FROM chunks WHERE key >> 20 = ? ORDER BY key", (chunks,)
                )
                content = b"".join(row[0] for row in rows)
            yield unpack(Packed(size, codec, content))
        connection.close()


def found(tmp_path: Path, *needles: str | bytes) -> list[str]:
    """The files of the store in which any of these can be read, contents unpacked."""
    wanted = [needle.encode() if isinstance(needle, str) else needle for needle in needles]
    places = []
    with TemporaryDirectory() as copy:
        # Closing a database file in this process would drop the locks of the open store.
        subprocess.run(["cp", "-a", f"{tmp_path}/.", copy], check=True)
        for folder, _, names in os.walk(copy):
            if Path(folder).is_relative_to(f"{copy}/project"):
                continue
            for name in names:
                data = Path(folder, name).read_bytes()
                places += [name for needle in wanted if needle in data]
        places += ["a blob" for content in contents(Path(copy)) for n in wanted if n in content]
    return places


def said(session: Session, content: str = "go on") -> None:
    session.append({"role": "user", "content": content})


def wrote(session: Session, path: Path, content: str | bytes) -> None:
    with session.tool("write", {"path": str(path)}):
        path.write_bytes(content.encode() if isinstance(content, str) else content)


# --- a session ---------------------------------------------------------------------------


def test_a_call_that_was_killed_keeps_nothing_of_its_session(
    url: str, project: Path, tmp_path: Path
) -> None:
    """What changed since it began is kept to be recorded, unless no process is left for that."""
    with open_store(url) as store, subprocess.Popen(["sleep", "600"]) as killed:
        with Session.create(store, "s", cwd=project) as session:
            said(session)
            with opened(store) as depot:
                (place,) = depot.catalogue.places()
                runner = Runner(killed.pid, born(killed.pid))
                depot.catalogue.lines.open_bracket(place.n, "s", None, None, "bash", None, runner)
            wrote(session, project / "secret", SECRET)
            (project / "secret").unlink()
            said(session)
        killed.kill()
        killed.wait()
        purge(store, "s")
        assert found(tmp_path, SECRET) == []


def test_a_session_is_erased(disk_url: str, project: Path, tmp_path: Path) -> None:
    """Its words, its record, its side logs and what only it captured; others lose nothing."""
    with open_store(disk_url) as store:
        with Session.create(store, "other", cwd=project) as other:
            said(other, "harmless words")
            point = other.checkpoint("here")
        with Session.create(
            store, "s", cwd=project, title=f"about {TEXT}", metadata={"k": TEXT}, key=TEXT
        ) as session:
            said(session, f"the password is {TEXT}")
            session.log("transcript").append({"raw": TEXT})
            wrote(session, project / "secret", SECRET)
            wrote(session, project / "secret", TEXT)
            (project / "secret").unlink()
            said(session)
        store.search("password")
        assert len(found(tmp_path, TEXT, SECRET)) > 3
        done = purge(store, "s")
        assert done.sessions == ("s",)
        assert done.events >= 6 and done.blobs >= 4
        assert found(tmp_path, TEXT, SECRET, "the password") == []
        with pytest.raises(NotFound):
            store.info("s")
        assert store.search("password") == []
        assert verify(store) == []
        with Session.resume(store, "other") as other:
            (project / "README").write_text("two\n")
            other.rewind(point, mode="exact")
            assert (project / "README").read_text() == "one\n"
    assert found(tmp_path, TEXT, SECRET) == []


def test_its_forks_keep_tombstones(url: str, project: Path) -> None:
    """What was said in the session goes from them; what they share in files stays."""
    with open_store(url) as store, Session.create(store, "s", cwd=project) as session:
        said(session, TEXT)
        wrote(session, project / "README", "two\n")
        with session.fork(session_id="fork") as fork:
            said(fork, "my own words")
            assert purge(store, "s").blobs == 0
            events = list(store.read("fork"))
            assert TEXT not in json.dumps([event.data for event in events])
            assert events[0].data == {"purged": True}
            assert events[-1].data["message"]["content"] == "my own words"
            with opened(store) as depot:
                assert depot.blobs.has([digest_of(b"one\n")])


def test_a_fork_goes_alone(url: str) -> None:
    """What it inherited stays its parent's, as long as a session reads that."""
    with open_store(url) as store:
        for id in ("parent", "s"):
            if id == "parent":
                store.create(SessionInfo(id))
            else:
                store.create(SessionInfo(id), base=("parent", 1))
            store.append(id, [NewEvent("note", {"of": id})])
        store.create(SessionInfo("sibling"), base=("parent", 1))
        store.create(SessionInfo("child"), base=("s", 2))
        store.delete("parent")
        assert purge(store, "s").events == 1
        assert [e.data for e in store.read("sibling")] == [{"of": "parent"}]
        assert [e.data for e in store.read("child")] == [{"of": "parent"}, {"purged": True}]
        store.delete("sibling")
        assert purge(store, "child").events == 2


def test_a_session_with_a_driver_is_left_alone(url: str) -> None:
    """Nothing of it is erased then."""
    with open_store(url) as store:
        store.create(SessionInfo("s", title="title"))
        store.append("s", [NewEvent("note", {"n": 1})])
        with store.lease("s"), pytest.raises(SessionBusy):
            purge(store, "s")
        assert store.info("s").title == "title"
        assert next(store.read("s")).data == {"n": 1}
        with pytest.raises(NotFound):
            purge(store, "none")


# --- a path ------------------------------------------------------------------------------


def test_a_path_is_erased(disk_url: str, project: Path, tmp_path: Path) -> None:
    """Every version, in all sessions, also if shared; a rewind to it says it is gone."""
    with open_store(disk_url) as store, Session.create(store, "s", cwd=project) as session:
        said(session)
        wrote(session, project / ".env", SECRET)
        wrote(session, project / "copy", SECRET)
        wrote(session, project / ".env", TEXT)
        point = session.checkpoint("with it")
        (project / ".env").unlink()
        (project / "copy").unlink()
        wrote(session, project / "README", "two\n")
        done = purge(store, path=".env")
        assert (done.blobs, done.sessions, done.present) == (2, ("s",), ())
        assert found(tmp_path, TEXT, SECRET) == []
        before = sorted(path.name for path in project.iterdir())
        with pytest.raises(NotFound, match=r"\.env"):
            session.rewind(point, mode="exact")
        assert sorted(path.name for path in project.iterdir()) == before
        session.rewind(point, scope="files", mode="exact", paths=["README"])
        assert (project / "README").read_text() == "one\n"
        assert verify(store) == []
        assert collect(store, grace=0).problems == ()
        assert purge(store, path=project / ".env").blobs == 0


def test_a_directory_of_one_session(tmp_path: Path, project: Path) -> None:
    """All below it, of that session only; a file still there is reported."""
    other = tmp_path / "project" / "other"
    other.mkdir()
    with (
        open_store(f"sqlite:///{tmp_path}/store.db") as store,
        Session.create(store, "a", cwd=project / "src") as a,
        Session.create(store, "b", cwd=other) as b,
    ):
        for session, root in ((a, project / "src"), (b, other)):
            (root / "keys" / "deep").mkdir(parents=True)
            wrote(session, root / "keys" / "deep" / "one", f"one of {session.id}")
            wrote(session, root / "keys" / "two", f"two of {session.id}")
        done = purge(store, "a", path=project / "src" / "keys")
        assert done.sessions == ("a",)
        assert done.blobs == 2
        assert done.present == tuple(
            str(project / "src" / "keys" / name) for name in ("deep/one", "two")
        )
        assert "a blob" not in found(tmp_path, "one of a", "two of a")
        assert "a blob" in found(tmp_path, "two of b")
        assert purge(store, path=project / "elsewhere").blobs == 0
        with pytest.raises(Unsafe):
            purge(store, "a", path=other / "keys")
        with pytest.raises(Unsafe):
            purge(store, path="../keys")
        with pytest.raises(InvalidData, match="whole workspace"):
            purge(store, path=".")


# --- a text ------------------------------------------------------------------------------


def test_a_text_is_erased(disk_url: str, project: Path, tmp_path: Path) -> None:
    """From messages, forks, side logs, records, notes, contents and the search index."""
    with open_store(disk_url) as store, Session.create(store, "s", cwd=project) as session:
        said(session, f"the password is {TEXT}, they said")
        said(session, "harmless")
        session.log("transcript").append({"raw": f"... {TEXT} ..."})
        list(session.log("transcript").read())
        fork = session.fork(session_id="fork", title=f"fork of {TEXT}")
        said(fork, TEXT)
        fork.update(tags=[TEXT], metadata={"k": [TEXT], "other": 1})
        wrote(session, project / "secret", f"password={TEXT}\n" * 50)
        (project / "secret").unlink()
        store.memory(project).write(f"remember {TEXT} always")
        store.search("password")
        fork.close()
        done = purge(store, text=TEXT)
        assert set(done.sessions) == {"s", "fork"}
        assert done.events >= 3 and done.blobs == 1
        assert found(tmp_path, TEXT) == []
        assert store.search("password") == []
        assert [hit.event.id for hit in store.search("harmless")] != []
        assert store.info("fork").title is None
        assert store.info("fork").metadata == {"other": 1}
        assert store.memory(project).read() == "remember [purged] always"
        messages = session.messages()
        assert all(TEXT not in json.dumps(message) for message in messages)
        assert purge(store, text=TEXT).events == 0
    assert found(tmp_path, TEXT) == []


def test_one_session_only(url: str) -> None:
    """Others keep what they hold themselves."""
    with open_store(url) as store:
        for id in ("a", "b"):
            store.create(SessionInfo(id))
            store.append(id, [NewEvent("note", {"text": TEXT}), NewEvent("note", {"n": 1})])
        done = purge(store, "a", text=TEXT)
        assert (done.sessions, done.events) == (("a",), 1)
        assert [e.data for e in store.read("a")] == [{"purged": True}, {"n": 1}]
        assert next(store.read("b")).data == {"text": TEXT}


@pytest.mark.parametrize("text", ['say "hi"\n', "naïve café ☕", "back\\slash", "tab\there"])
def test_a_text_that_json_escapes(text: str, tmp_path: Path) -> None:
    """It is found in values, in JSON within JSON, and however that was written."""
    nested = [json.dumps({"a": text}), json.dumps({"a": text}, ensure_ascii=False)]
    values = [text, {text: 1}, [f"x{text}y"], *nested, json.dumps({"b": nested[0]})]
    with open_store(f"file:{tmp_path}/store") as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("note", {"value": value}) for value in values])
        store.append("s", [NewEvent("note", {"value": text[:-1]})])
        assert purge(store, text=text).events == len(values)
        assert [e.data for e in store.read("s")][-1] == {"value": text[:-1]}


def test_what_is_still_in_the_workspace_is_reported(tmp_path: Path, project: Path) -> None:
    """Because the next scan would capture it again."""
    with (
        open_store(f"sqlite:///{tmp_path}/store.db") as store,
        Session.create(store, "s", cwd=project) as session,
    ):
        wrote(session, project / "src" / "secret", TEXT)
        done = purge(store, text=TEXT)
        assert done.present == (str(project / "src" / "secret"),)
        said(session)
        assert purge(store, text=TEXT).blobs == 1
        (project / "src" / "secret").unlink()
        said(session)
        assert purge(store, text=TEXT).present == ()
        assert found(tmp_path, TEXT) == []
        assert purge(store, text=TEXT).to_dict()["blobs"] == 0


# --- asking ------------------------------------------------------------------------------


def test_what_to_purge_must_be_said(url: str) -> None:
    """One thing at a time."""
    with open_store(url) as store:
        for wrong in ({}, {"path": "a", "text": "b"}, {"text": ""}, {"text": "\ud800"}):
            with pytest.raises(InvalidData):
                purge(store, **wrong)


def test_purging_is_reported(url: str) -> None:
    """What was erased, not the text."""
    heard: list[telemetry.Signal] = []
    with open_store(url) as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("note", {"text": TEXT})])
        stop = telemetry.listen(heard.append)
        try:
            purge(store, text=TEXT)
        finally:
            stop()
    (signal,) = [signal for signal in heard if signal.name == "store.purge"]
    assert signal.measurements["events"] == 1
    assert signal.metadata["sessions"] == ["s"]
    assert TEXT not in str(signal)
