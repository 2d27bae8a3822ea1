"""Odd arguments and odd places: each is reported, none is taken for something else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.stage import CODE, Stage


@pytest.mark.parametrize("target", [">/dev/full", ">&-", "<&-", "2>&-"])
def test_streams_that_cannot_be_used(worked: Stage, target: str) -> None:
    """A full disk is an error; what is closed is not written to."""
    line = f'exec "{sys.executable}" -c "{CODE}" ls --json {target}'
    done = subprocess.run(
        ["sh", "-c", line], cwd=worked.project, env=worked.environment(), capture_output=True,
        text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if "full" in target else 0), done.stderr
    assert ("No space left" in done.stderr) == ("full" in target)


def test_watch_of_a_session_that_is_over_ends(worked: Stage) -> None:
    """Nothing more will come."""
    with worked.session("work") as s:
        s.end("done")
    ran = worked.run("watch", "-n", "2", "--json")
    assert [json.loads(row)["kind"] for row in ran.out.splitlines()][-1] == "session_end"
    assert worked.run("watch", "-n", "0").code == 0


def test_log_passes_by_what_is_outside(worked: Stage) -> None:
    """The other paths are meant all the same; nothing found is an empty list, for all."""
    ran = worked.run("log", "--json", "--", "README.md", "/etc/passwd")
    assert [row["path"] for row in ran.json["changes"]] == ["README.md"]
    ran = worked.run("log", "work", "--json", "--", "README.md", "/etc/passwd")
    assert [row["path"] for row in ran.json["changes"]] == ["README.md"]
    plain, scripted = worked.run("log", "--", "no"), worked.run("log", "--json", "--", "no")
    assert (plain.code, scripted.code, scripted.json["changes"]) == (0, 0, [])
    assert "no call of these sessions changed no" in plain.err


def test_the_whole_folder_can_be_restored(worked: Stage) -> None:
    """`.` is all that the last call changed."""
    done = worked.run("restore", ".", "--yes")
    assert done.code == 0, done.err
    assert (worked.project / ".env").read_text() == "TOKEN=only-copy\n"
    assert (worked.project / "README.md").exists()


def test_a_path_that_never_was_is_reported(worked: Stage) -> None:
    """A slip of the pen is not "all is so already"; what was there then is known."""
    ran = worked.run("rewind", "1", "--yes", "--", "typo.txt")
    assert (ran.code, "no `typo.txt`" in ran.err) == (3, True)
    ran = worked.run("rewind", "1", "--yes", "--scope", "conversation", "--", "app.py")
    assert (ran.code, "--scope conversation" in ran.err) == (2, True)
    assert worked.run("rewind", "--last", "--yes", "--", ".env").code == 0
    assert (worked.project / ".env").exists()


def test_arguments_that_make_no_sense(worked: Stage) -> None:
    """All end with the same code."""
    for arguments in (
        ("ls", "--since", "soon"),
        ("search", ""),
        ("search", "!!"),
        ("log", "-n", "-3"),
        ("ls", "-n", "x"),
    ):
        assert worked.run(*arguments).code == 2, arguments


def test_with_json_the_output_of_a_command_is_beside_the_data(stage: Stage) -> None:
    """Stdout holds one document."""
    ran = stage.run("record", "--json", "--", "echo", "hi")
    assert ran.json["exit_code"] == 0
    assert ran.err.startswith("hi\n")


def test_what_is_here_already_is_reported(stage: Stage) -> None:
    """A second import of the same makes nothing new, and says so."""
    Path(stage.folder, "m.json").write_text('[{"role": "user", "content": "hi"}]')
    ran = stage.run("import", "messages", "../m.json")
    assert "1 new" in ran.err
    for more in ((), ("--dry-run",)):
        ran = stage.run("import", "messages", "../m.json", *more)
        assert (ran.out, "1 unchanged" in ran.err) == ("", True)
    assert stage.run("export", "-o", "../a.bundle").code == 0
    assert "is here already" in stage.run("import", "../a.bundle").err
    assert stage.run("import", "../a.bundle", "--json").json["sessions"][0]["created"] is False
    assert "imported" in stage.run("import", "../a.bundle", "--as", "copy").err


def test_relocate_shows_some_of_many(worked: Stage) -> None:
    """As plans do; the numbers and JSON have all."""
    for number in range(60):
        (worked.project / f"file-{number}").touch()
    ran = worked.run("relocate")
    assert len(ran.lines) < 50
    assert "more; --json lists all" in ran.out


@pytest.mark.parametrize("name", ["\\x41", "\\x", "\\", "\\xff", "a\\\\x41"])
def test_a_backslash_in_a_path_is_no_fault(worked: Stage, name: str) -> None:
    """A path that is neither there nor was is not found, whatever it looks like."""
    for verb in (
        ["rewind", "--last", "--yes", "--", name],
        ["restore", name, "--at", "1", "--yes"],
    ):
        ran = worked.run(*verb)
        assert "Traceback" not in ran.err
        assert ran.code in (0, 3), ran.err
    (worked.project / "\\x41").write_text("a backslash\n")
    ran = worked.run("rewind", "--last", "--mode", "exact", "--yes", "--", "\\x41")
    assert ran.code == 0 and not (worked.project / "\\x41").exists()


COMMANDS = {
    "no first line": ("run", "echo hi > out\n", 0o755, 126),
    "an interpreter that is not there": ("run", "#!/no/such/thing\n", 0o755, 127),
    "may not be executed": ("run", "#!/bin/sh\n", 0o644, 126),
    "a folder": (".", "", 0o755, 126),
    "not there": ("walk", "", 0o644, 127),
}


@pytest.mark.parametrize("name, text, mode, code", COMMANDS.values(), ids=COMMANDS)
def test_record_of_what_cannot_be_run(
    stage: Stage, name: str, text: str, mode: int, code: int
) -> None:
    """It says why, with the exit code of a shell; the latest session is the one before."""
    (stage.project / "run").write_text(text)
    (stage.project / "run").chmod(mode)
    ran = stage.run("record", "--", f"./{name}")
    assert ran.code == code, ran.err
    assert "nothing was recorded" in ran.err and "Errno" not in ran.err
    assert not (stage.project / "out").exists()
    assert stage.run("ls", "--json").json["sessions"] == []


@pytest.mark.parametrize("url", ["sqlite:///deep/down/x.db", "file:deep/down"])
def test_making_a_folder_for_a_store_is_said(stage: Stage, url: str) -> None:
    """On stderr, by the verb that makes it; not when it is there."""
    made = f"made the folder {stage.project / 'deep' / 'down'} for the store"
    assert made in stage.run("record", "--store", url, "--", "true").err
    assert "made the folder" not in stage.run("record", "--store", url, "--", "true").err
