"""The verbs that keep house: names, checkpoints, removing, checking, completing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import apsw
import pytest

from backtrail import Session, open_store
from backtrail.cli.verbs import modules
from backtrail.files.depot import opened
from tests.cli.stage import Stage

# --- names -------------------------------------------------------------------------------


def test_rename_gives_and_takes_a_title(worked: Stage) -> None:
    """Without a title, the session is called by its first prompt."""
    assert worked.run("rename", "Second try").lines == [
        "The greeter (work) is now called Second try"
    ]
    assert worked.run("show").lines[0] == "Second try"
    assert worked.run("rename", "", "-s", "work", "--json").json["title"] == "Add a readme."
    assert worked.run("show").lines[0] == "Add a readme."


def test_tags_are_put_on_and_taken_off(worked: Stage) -> None:
    """All at once; without any, they are shown."""
    assert worked.run("tag", "good", "shared").lines == ["The greeter (work) has tags good, shared"]
    assert worked.run("tag", "new", "--remove", "good", "--json").json["tags"] == ["shared", "new"]
    assert worked.run("tag").lines == ["The greeter (work) has tags shared, new"]
    assert worked.run("tag", "x", "--remove", "x").code == 2
    assert worked.run("tag", " ").code == 1


# --- checkpoint --------------------------------------------------------------------------


def test_a_checkpoint_holds_conversation_and_files(worked: Stage) -> None:
    """It says how to go back, and that works."""
    (worked.project / "app.py").write_text("by hand\n")
    ran = worked.run("checkpoint", "good")
    assert ran.lines == ["checkpoint good at prompt 2, conversation and files"]
    assert ran.err.endswith("backtrail rewind good\n")
    (worked.project / "app.py").write_text("broken\n")
    with worked.session("work") as s:
        s.rewind("good", mode="exact")
    assert (worked.project / "app.py").read_text() == "by hand\n"


def test_a_checkpoint_can_be_deleted(worked: Stage) -> None:
    """With consent; then it is no point any more, and the files stay as they are."""
    assert worked.run("checkpoint", "good").code == 0
    before = (worked.project / "app.py").read_bytes()
    refused = worked.run("checkpoint", "--delete", "good")
    assert refused.code == 2 and "--yes" in refused.err
    assert worked.run("checkpoint", "--delete", "@-1", "--yes").code == 3
    ran = worked.run("checkpoint", "--delete", "good", "--yes")
    assert (ran.code, ran.lines) == (0, ["deleted checkpoint good of event 9"]), ran
    assert worked.run("checkpoint", "--delete", "good", "--yes").code == 3
    assert worked.run("rewind", "good", "--yes").code == 3
    assert "checkpoint_deleted" in worked.run("log").out
    assert (worked.project / "app.py").read_bytes() == before
    with worked.session("work") as s:
        assert "good" not in [point.label for point in s.checkpoints()]


def test_a_checkpoint_of_an_earlier_point(worked: Stage) -> None:
    """It points there, and not at now."""
    ran = worked.run("checkpoint", "first", "--at", "@-2", "--json").json
    assert (ran["label"], ran["seq"]) == ("first", 2)


def test_a_checkpoint_begins_a_session_where_there_is_none(stage: Stage) -> None:
    """So any folder can be kept before something happens to it."""
    (stage.project / "a.txt").write_text("one\n")
    ran = stage.run("checkpoint", "before", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["created_session"] is True
    back = "backtrail rewind before --mode exact --session"
    assert ran.json["rewind"] == f"{back} {ran.json['session_id']}"
    (stage.project / "a.txt").write_text("two\n")
    with Session.resume(stage.url, ran.json["session_id"]) as s:
        s.rewind("before", mode="exact")
    assert (stage.project / "a.txt").read_text() == "one\n"
    assert stage.run("checkpoint", "again", "--json").json["created_session"] is False


# --- delete and purge --------------------------------------------------------------------


def test_delete_shows_what_goes_and_does_it(worked: Stage) -> None:
    """Only with --yes or a yes; forks keep what they share."""
    with worked.session("work") as s:
        s.fork(session_id="plan-b").close()
    ran = worked.run("delete", "work", "--dry-run")
    assert ran.lines == [
        f"work  The greeter  2 turns, {worked.project}, WHEN",
        "  1 fork of it keep what they share",
    ]
    ran = worked.run("delete", "work", "--yes", "--json")
    assert [row["id"] for row in ran.json["sessions"]] == ["work"]
    assert worked.run("show", "work").code == 3
    assert worked.run("show", "plan-b", "--turn", "2").code == 0


def test_delete_needs_the_name_of_a_session(worked: Stage) -> None:
    """The latest here is no default for what cannot be undone; one unknown name stops all."""
    assert worked.run("delete", "--yes").code == 2
    assert worked.run("delete", "work", "nobody", "--yes").code == 3
    assert worked.run("show", "work").code == 0


def test_a_session_that_is_driven_is_not_deleted(worked: Stage) -> None:
    """Exit code 5 names the holder."""
    with worked.session("work", files=False) as s, s.turn("Wait.") as _:
        ran = worked.run("delete", "work", "--yes")
        assert ran.code == 5
        assert str(os.getpid()) in ran.err
    assert worked.run("show", "work").code == 0


def test_purge_erases_a_text_from_logs_and_contents(worked: Stage) -> None:
    """It can be read from stdin, so that it is not in the history of the shell."""
    with worked.session("work") as s, s.turn("the password is xyzzy") as _, s.tool("bash"):
        (worked.project / "pass.txt").write_text("xyzzy\n")
    (worked.project / "pass.txt").unlink()
    preview = worked.run("purge", "--text", "-", "--dry-run", "--json", input="xyzzy\n").json
    assert (preview["events"], preview["sessions"]) == (1, ["work"])
    assert "xyzzy" in worked.run("show", "--full").out
    ran = worked.run("purge", "--text", "-", "--yes", "--json", input="xyzzy\n")
    assert ran.code == 0, ran.err
    assert (ran.json["events"], ran.json["blobs"]) == (1, 1)
    for path in (worked.folder / "store").rglob("*"):
        assert not path.is_file() or b"xyzzy" not in path.read_bytes()


def contents(stage: Stage) -> bytes:
    """All bytes of the contents that the store has, as `materialize` writes them."""
    found = b""
    with open_store(stage.url) as store, opened(store) as depot:
        for digest in depot.blobs.digests():
            found += depot.blobs.get(digest)
    return found


def test_purge_of_a_path_is_of_this_project(stage: Stage) -> None:
    """Another project may have its only copy; and is never said to have to go."""
    one, two = stage.project, stage.folder / "two"
    two.mkdir()
    for root in (one, two):
        for name, text in ((".env", f"of {root.name}\n"), ("shared", "SAME\n")):
            (root / name).write_text(text)
        assert stage.run("record", "--", "rm", ".env", cwd=root).code == 0
    assert stage.run("record", "--", "touch", "new", cwd=one).code == 0
    ran = stage.run("purge", "--path", ".env", "--dry-run", "--json")
    assert len(ran.json["sessions"]) == 1, ran.err
    ran = stage.run("purge", "--path", ".env", "--yes", cwd=stage.folder)
    assert (ran.code, "--everywhere" in ran.err) == (3, True)
    ran = stage.run("purge", "--path", ".env", "--yes")
    assert (ran.code, str(two) in ran.out + ran.err) == (0, False), ran.err
    assert b"of project\n" not in contents(stage)
    assert stage.run("undo", "--yes", cwd=two).code == 0
    assert (two / ".env").read_bytes() == b"of two\n"
    ran = stage.run("purge", "--path", "shared", "--yes")
    assert f"{two.resolve()} has the same content, so it is kept" in ran.err
    assert f"{two.resolve()}/shared" not in ran.out + ran.err
    assert b"SAME" in contents(stage)
    assert stage.run("purge", "--path", "shared", "--everywhere", "--yes").code == 0
    assert b"SAME" not in contents(stage)
    assert stage.run("purge", "--text", "x", "--everywhere", "--yes").code == 2


def test_purge_of_a_path_and_of_a_session(worked: Stage) -> None:
    """Each says what it did."""
    ran = worked.run("purge", "--path", ".env", "--yes")
    assert ran.lines == [
        f"Every content that was captured at {worked.project.resolve()}/.env, in 1 session.",
        "purged 0 events of 1 session and 1 content of files",
    ]
    ran = worked.run("purge", "work", "--yes")
    assert ran.code == 0, ran.err
    assert worked.run("show", "work").code == 3


def test_purge_takes_one_thing(worked: Stage) -> None:
    """Anything else is a mistake that must not erase."""
    assert worked.run("purge", "--yes").code == 2
    assert worked.run("purge", "--yes", "--path", "a", "--text", "b").code == 2
    assert worked.run("purge", "--yes", "--text", "-").code == 1
    assert worked.run("purge", "--yes", "--text", "").code == 1


# --- relocate ----------------------------------------------------------------------------


def test_a_moved_folder_is_found_again(worked: Stage) -> None:
    """The session works there; how its files differ is reported."""
    new = worked.folder / "new"
    worked.project.rename(new)
    (new / "app.py").write_text("changed on the way\n")
    ran = worked.run("relocate", "-s", "work", cwd=new)
    assert ran.code == 0, ran.err
    assert ran.lines == [
        f"session work is in {new} now; it was in {worked.project}",
        "its files differ from those it knew: 1 file, +1 −2",
        "  M  app.py  +1 −2",
    ]
    assert worked.run("status", cwd=new).lines[0] == "The greeter"
    ran = worked.run("relocate", "-s", "work", cwd=new)
    assert ran.lines == [f"session work is in {new}, as before"]
    assert worked.run("relocate", "nowhere", "-s", "work", cwd=new).code == 3


# --- gc, verify, doctor ------------------------------------------------------------------


def test_gc_removes_what_deleted_sessions_left(worked: Stage) -> None:
    """A dry run prints the same and removes nothing."""
    shutil.rmtree(worked.project)
    worked.project.mkdir()
    worked.run("delete", "work", "--yes")
    dry = worked.run("gc", "--now", "--dry-run", "--json").json
    assert dry["dry_run"] is True and dry["sessions"] == ["work"]
    real = worked.run("gc", "--now", "--json").json
    assert (real["dry_run"], real["blobs"], real["sessions"]) == (False, dry["blobs"], ["work"])
    assert worked.run("gc", "--now", "--json").json["blobs"] == 0
    assert worked.run("gc").lines[0] == "removed 0 contents, 0 B before compression"


def test_gc_says_what_it_spared(worked: Stage) -> None:
    """Over the budget, young contents of deleted sessions are why nothing goes."""
    assert worked.run("delete", "work", "--yes", BACKTRAIL_COLLECT="off").code == 0
    assert "in the last hour was spared" in worked.run("gc", BACKTRAIL_BUDGET="1").err
    assert "spared" not in worked.run("gc", "--now", BACKTRAIL_BUDGET="1").err


def test_gc_of_a_store_without_contents(stage: Stage) -> None:
    """There is nothing to do, and nothing is made."""
    ran = stage.run("gc", "--json")
    assert (ran.code, ran.json["blobs"]) == (0, 0)
    assert stage.run("gc").code == 0


def test_verify_reports_damage_by_its_exit_code(stage: Stage) -> None:
    """A sound store is 0, a damaged one 6 and its places, one that cannot be opened 1."""
    url = f"file:{stage.folder}/logs"
    with open_store(url) as store, Session.create(store, "a") as s:
        s.append({"role": "user", "content": "hello"})
    assert stage.run("verify", url).code == 0
    log = stage.folder / "logs/sessions/a/messages.jsonl"
    log.write_bytes(log.read_bytes().replace(b"hello", b"hallo"))
    found = stage.run("verify", url)
    assert found.code == 6
    assert found.out.startswith("a/messages: torn line")
    rows = stage.run("verify", "--store", url, "--json")
    assert (rows.code, rows.json["problems"][0]["session_id"]) == (6, "a")
    assert stage.run("verify", "nowhere").code == 1
    # Other verbs go on with what can be read, and say so.
    ran = stage.run("log", "a", "--store", url)
    assert ran.code == 0
    assert "backtrail verify" in ran.err


def test_verify_seals_events_of_an_earlier_version(stage: Stage) -> None:
    """It says that there are some, and with `--seal` that there were."""
    url = f"sqlite:///{stage.folder}/old.db"
    with open_store(url) as store, Session.create(store, "a") as s:
        s.append({"role": "user", "content": "hello"})
    connection = apsw.Connection(f"{stage.folder}/old.db")
    with connection:
        connection.execute("UPDATE events SET crc = NULL")
        connection.execute("UPDATE logs SET unsealed = 2")
    connection.close()
    ran = stage.run("verify", url)
    assert ran.code == 0 and "2 events of an earlier version have no check sum" in ran.err
    ran = stage.run("verify", url, "--seal")
    assert ran.code == 0 and "2 events sealed" in ran.err
    assert "check sum" not in ran.err
    rows = stage.run("verify", url, "--json").json
    assert (rows["problems"], rows["sealed"], rows["unsealed"]) == ([], 0, 0)


def test_doctor_finds_all_well(worked: Stage) -> None:
    """Each check has a line."""
    ran = worked.run("doctor")
    assert ran.code == 0
    assert {line.split()[0] for line in ran.lines} == {"ok"}
    names = {check["name"] for check in worked.run("doctor", "--json").json["checks"]}
    wanted = {"settings", "sqlite", "store", "permissions", "disk", "budget", "journals"}
    assert wanted | {"folders", "captured", "calls", "hooks"} == names


def states(stage: Stage, **environment: str) -> dict[str, str]:
    checks = stage.run("doctor", "--json", cwd=stage.folder, **environment).json["checks"]
    return {check["name"]: check["state"] for check in checks}


def test_doctor_finds_what_is_not(worked: Stage) -> None:
    """Open permissions, a full budget, a folder that is gone, hooks that are off."""
    database = worked.folder / "store" / "agent.db"
    database.chmod(0o644)
    ran = worked.run("doctor")
    assert ran.code == 1
    assert f"chmod -R go-rwx {database}" in ran.out
    database.chmod(0o600)
    assert states(worked, BACKTRAIL_BUDGET="1")["budget"] == "bad"
    assert states(worked, BACKTRAIL_HOOKS="off")["hooks"] == "warning"
    worked.project.rename(worked.folder / "moved")
    assert states(worked)["folders"] == "warning"
    ran = worked.run("doctor", "--store", "nowhere", cwd=worked.folder)
    assert ran.code == 1 and "bad     store" in ran.out


def test_doctor_finds_a_folder_that_was_made_anew(worked: Stage) -> None:
    """What was captured there may not be what is there."""
    worked.project.rename(worked.folder / "old")
    worked.project.mkdir()
    ran = worked.run("doctor")
    assert f"{worked.project} is not the folder that was captured" in ran.out
    assert "backtrail relocate" in ran.out


def test_doctor_finds_a_restore_that_was_cut_short(worked: Stage) -> None:
    """And says how it is finished."""
    with open_store(worked.url) as store, opened(store) as depot:
        place = depot.catalogue.places()[0]
        depot.catalogue.write_journal(place, b"unfinished")
    assert states(worked)["journals"] == "warning"
    assert f"a restore in {worked.project} was cut short" in worked.run("doctor").out


# --- completion --------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_what_the_shell_can_read(stage: Stage, shell: str) -> None:
    """Every verb and its options are in it."""
    script = stage.run("completion", shell).out
    for verb in modules():
        assert verb == "hook" or verb in script
    assert "dry-run" in script and "branch" in script
    assert stage.run("completion", shell, "--json").json["script"].strip() == script.strip()
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", "/dev/stdin"], input=script, text=True)
        assert done.returncode == 0


def test_bash_completes(stage: Stage, tmp_path: Path) -> None:
    """Verbs first, then the options of the verb."""
    script = tmp_path / "completion.bash"
    script.write_text(stage.run("completion", "bash").out)

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        code = (
            "backtrail() { printf 'session  title\\nwork-1   The work\\n'; }; "
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            '_backtrail; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("backtrail", "sta") == ["status", "stats"]
    assert completed("backtrail", "ls", "--arch") == ["--archived"]
    assert completed("backtrail", "completion", "f") == ["fish"]
    assert completed("backtrail", "nonsense", "--") == []
    assert completed("backtrail", "hooks", "install", "c") == ["claude-code", "codex"]
    assert completed("backtrail", "hooks", "c") == []
    assert completed("backtrail", "rewind", "--scope", "") == ["both", "conversation", "files"]
    assert completed("backtrail", "restore", "x", "--on-conflict", "m") == ["merge"]
    assert completed("backtrail", "chat", "--phase", "pl") == ["plan"]
    for words in (("show",), ("undo", "-s"), ("chat", "--resume")):
        assert completed("backtrail", *words, "") == ["latest", "work-1"]
