"""The verb `export`, and the functions behind it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from backtrail import AlreadyExists, Session, SessionInfo, open_store
from backtrail.exchange.export.placing import placed
from backtrail.exchange.exporting import export_jsonl, write_file
from backtrail.formats.secrets import Masking
from tests.cli.stage import CODE, Stage, work

KEY = "ghp_" + "a1B2c3" * 6


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A project with a session `work` that knows a key."""
    made = Stage(tmp_path)
    made.project.mkdir()
    work(made)
    with made.session("work") as session:
        session.append({"role": "user", "content": f"use {KEY}"})
        session.log("transcript").append({"raw": KEY})
    return made


@pytest.mark.parametrize(
    ("flags", "name", "begins"),
    [
        ((), "work.html", b"<!doctype html>"),
        (("--html",), "work.html", b"<!doctype html>"),
        (("--markdown",), "work.md", b"# The greeter"),
        (("--jsonl",), "work.jsonl", b'{"session":"work"'),
        (("--bundle",), "work.bundle", b"\x28\xb5\x2f\xfd"),
        (("-o", "x.HTM"), "x.HTM", b"<!doctype html>"),
        (("-o", "x.md"), "x.md", b"# The greeter"),
        (("-o", "x.jsonl"), "x.jsonl", b'{"session":"work"'),
        (("-o", "x.bundle"), "x.bundle", b"\x28\xb5\x2f\xfd"),
        (("--markdown", "-o", "x.txt"), "x.txt", b"# The greeter"),
    ],
)
def test_each_kind(stage: Stage, flags: tuple[str, ...], name: str, begins: bytes) -> None:
    """By flag or by suffix; into a private file, whose name is the data."""
    ran = stage.run("export", "work", *flags)
    assert (ran.code, ran.out) == (0, f"{name}\n"), ran.err
    path = stage.project / name
    assert path.read_bytes().startswith(begins)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in stage.project.iterdir() if "work" in p.name or "x." in p.name] == [name]


def test_secrets_are_masked_and_counted(stage: Stage) -> None:
    """But for bundles, which say that they are not; either can be had otherwise."""
    for kind, count in (("--html", 1), ("--markdown", 1), ("--jsonl", 2)):
        ran = stage.run("export", "work", kind, "-o", "x", "--force")
        held = (stage.project / "x").read_text()
        assert (KEY in held, "[REDACTED:github-token]" in held) == (False, True)
        assert f"masked {count} secret" in ran.err
        ran = stage.run("export", "work", kind, "-o", "x", "--force", "--no-mask")
        assert KEY in (stage.project / "x").read_text()
        assert "not masked" in ran.err
    ran = stage.run("export", "work", "--bundle", "--json")
    assert (ran.json["masked"], "--mask" in ran.err) == (0, True)
    ran = stage.run("export", "work", "--bundle", "--mask", "--json", "-f")
    assert ran.json["masked"] == 2


def test_json_reports_what_was_written(stage: Stage) -> None:
    """One document on stdout."""
    done = stage.run("export", "work", "--json").json
    path = stage.project / "work.html"
    assert done == {
        "session": "work",
        "kind": "html",
        "masked": 1,
        "path": str(path),
        "size": path.stat().st_size,
    }
    done = stage.run("export", "--json", "--bundle").json
    assert (done["missing"], done["kind"]) == (0, "bundle")
    assert done["events"] > 10
    assert done["blobs"] > 3


def test_to_stdout(stage: Stage) -> None:
    """Only the export is on stdout, and it leaves no file."""
    before = sorted(os.listdir(stage.project))
    ran = stage.run("export", "work", "--html", "-o", "-")
    assert ran.out.startswith("<!doctype html>")
    assert ran.out.endswith("</html>\n")
    assert stage.run("export", "work", "-o", "-").out.startswith("# The greeter")
    lines = stage.run("export", "work", "--jsonl", "-o", "-").out.splitlines()
    assert {json.loads(line)["log"] for line in lines} == {"messages", "transcript"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, "export", "work", "--bundle", "-o", "-"],
        cwd=stage.project, env=stage.environment(), capture_output=True,
    )  # fmt: skip
    (stage.folder / "piped.bundle").write_bytes(done.stdout)
    assert sorted(os.listdir(stage.project)) == before
    ran = stage.run("import", str(stage.folder / "piped.bundle"), "--as", "copy", "--json")
    assert ran.code == 0, ran.err


def test_what_makes_no_sense(stage: Stage) -> None:
    """Says what to do, and writes nothing."""
    before = sorted(os.listdir(stage.project))
    for arguments, code, says in (
        (("work", "-o", "x.pdf"), 2, "--html"),
        (("work", "-o", "-", "--json"), 2, "-o"),
        (("work", "--html", "--bundle"), 2, "not allowed with"),
        (("nobody",), 3, "nobody"),
        (("work", "-o", "no/such/folder/x.html"), 1, "No such file"),
        (("work", "-o", str(stage.folder), "--html"), 1, "folder"),
    ):
        ran = stage.run("export", *arguments)
        assert (ran.code, says in ran.err) == (code, True), (arguments, ran.err)
    assert sorted(os.listdir(stage.project)) == before


def test_nothing_is_overwritten_unasked(stage: Stage) -> None:
    """Not even through a link; with --force the link goes, and what it led to stays."""
    target = stage.folder / "precious.txt"
    target.write_text("mine")
    (stage.project / "x.md").symlink_to(target)
    ran = stage.run("export", "work", "-o", "x.md")
    assert (ran.code, "--force" in ran.err) == (1, True)
    assert stage.run("export", "work", "-o", "x.md", "--force").code == 0
    assert target.read_text() == "mine"
    assert not (stage.project / "x.md").is_symlink()


def test_a_round_trip_through_the_command_line(stage: Stage) -> None:
    """Export here, import there, and the files come back."""
    assert stage.run("export", "work", "-o", "w.bundle").code == 0
    other = f"sqlite:///{stage.folder}/other/o.db"
    ran = stage.run("import", "w.bundle", "--store", other, "--json")
    assert ran.code == 0, ran.err
    with open_store(other) as store, Session.resume(store, "work") as session:
        point = session.checkpoints()[0]
        session.fork(at=point, into=stage.folder / "there").close()
    assert (stage.folder / "there" / ".env").read_text() == "TOKEN=only-copy\n"
    ran = stage.run("import", "w.bundle", "--store", other)
    assert ran.code == 0, ran.err
    with open_store(other) as store:
        store.delete("work")
        store.create(SessionInfo(id="work"))
    ran = stage.run("import", "w.bundle", "--store", other, "--json")
    assert (ran.code, "--as" in ran.json["error"]["message"]) == (1, True)
    (stage.project / "w.bundle").write_bytes(b"nonsense")
    assert stage.run("import", "w.bundle", "--store", other).code == 6


# --- the library -------------------------------------------------------------------------


def test_lines_hold_everything(stage: Stage) -> None:
    """Each log, each event, also what was taken back; the main log first."""
    with stage.session("work") as session:
        session.undo()
        lines = [json.loads(line) for line in export_jsonl(session, masking=Masking(on=False))]
        logs = [line["log"] for line in lines]
        assert logs == sorted(logs)
        main = [line for line in lines if line["log"] == "messages"]
        keys = {"session", "log", "seq", "id", "ts", "kind", "data"}
        assert all(set(line) - {"follows"} == keys for line in lines)
        assert [line["seq"] for line in main] == list(range(1, session.info().head + 1))
        assert main[-1]["follows"] == session.history()[-1].follows
        assert [line["data"] for line in main] == [event.data for event in session.events()]


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """If writing fails there is nothing, not even beside it."""
    path = tmp_path / "x.md"
    with pytest.raises(RuntimeError), placed(path) as file:
        file.write(b"half")
        raise RuntimeError("no more")
    assert list(tmp_path.iterdir()) == []
    assert write_file(path, [b"one ", b"two"]) == 7
    with pytest.raises(RuntimeError), placed(path, force=True) as file:
        file.write(b"half")
        raise RuntimeError("no more")
    assert path.read_bytes() == b"one two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    """Between the look and the last step."""
    path = tmp_path / "x.md"
    with pytest.raises(AlreadyExists), placed(path) as file:
        file.write(b"ours")
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["--markdown", "--bundle"])
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "force"])
def test_a_pipe_is_written_to_and_stays(stage: Stage, kind: str, force: list[str]) -> None:
    """A device is one too: `-o /dev/null --force` must not put a file in its place."""
    pipe = stage.project / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    ran = stage.run("export", "work", kind, "-o", "pipe", *force)
    reader.join(10)
    assert ran.code == 0, ran.err
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert stage.run("export", "work", kind, "-o", "file").code == 0
    assert got == [(stage.project / "file").read_bytes()]
