"""Rewinding files: what goes back, what stays, and what is said about it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from backtrail import Event, NewEvent, NotFound, Session
from backtrail.errors import Conflict, Damaged
from backtrail.events import Json
from backtrail.files.depot import Depot
from backtrail.files.restore.materialize import write_tree
from backtrail.files.restore.restore import Restore
from tests.files.conftest import shell
from tests.files.world import look
from tests.talking import kinds, texts, user


def actions(files: list[Json]) -> dict[str, str]:
    return {file.path: file.action for file in files}


def test_three_turns_of_one_file(session: Session, project: Path) -> None:
    """a to b, b to c, c to d: the end of turn 1 is b, whatever was touched when first."""
    ends = []
    for text in "bcd":
        session.append(user(text))
        shell(session, f"echo {text} > README; echo {text} > only-{text}", project)
        ends.append(next(session.events(reverse=True, limit=1)))
    session.rewind(ends[0])
    assert (project / "README").read_text() == "b\n"
    assert sorted(os.listdir(project)) == ["README", "only-b", "src"]
    assert texts(session) == ["begin", "b"]
    session.undo()
    assert (project / "README").read_text() == "d\n"
    assert texts(session) == ["begin", "b", "c", "d"]
    session.rewind(before=2)
    assert (project / "README").read_text() == "one\ntwo\nthree\n"


def test_a_rewind_of_the_conversation_alone_changes_nothing_for_files(
    session: Session, project: Path
) -> None:
    """Files have one line of time, by the order of the log."""
    shell(session, "echo b > README", project)
    point = session.append(user("second"))
    shell(session, "echo c > README", project)
    session.rewind(before=point, scope="conversation")
    assert (project / "README").read_text() == "c\n"
    session.append(user("third"))
    shell(session, "echo d > README", project)
    session.rewind(point, scope="files")
    assert (project / "README").read_text() == "b\n"
    assert texts(session) == ["begin", "third"]
    session.undo()
    assert (project / "README").read_text() == "d\n"
    assert texts(session) == ["begin", "third"]


def test_undo_and_redo_of_turns(session: Session, project: Path) -> None:
    """Repeated undo walks further back; redo comes forward again."""
    for text in "abc":
        with session.turn(text):
            shell(session, f"echo {text} >> README", project)
    seen = look(project)
    assert [len(texts(session)) for _ in range(3) if session.undo()] == [3, 2, 1]
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    for _ in range(3):
        session.redo()
    assert look(project) == seen
    with pytest.raises(NotFound):
        session.redo()


def test_directories_go_when_they_are_empty(session: Session, project: Path) -> None:
    """And stay where a person put something into them."""
    shell(session, "mkdir -p a/b c; touch a/b/x c/y", project)
    (project / "c" / "mine").write_text("a person\n")
    done = session.rewind(before=2)
    assert sorted(os.listdir(project)) == ["README", "c", "src"]
    assert os.listdir(project / "c") == ["mine"]
    assert [f.reason for f in done.files if f.path == "c"] == ["holds c/mine, which stays"]


def test_paths_take_only_these(session: Session, project: Path) -> None:
    """Of the conversation and all else nothing changes with scope "files"."""
    shell(session, "echo x > README; echo x > src/main.py; echo x > src/new", project)
    done = session.rewind(before=2, scope="files", paths=["src"])
    assert actions(done.files) == {"src/main.py": "write", "src/new": "delete"}
    assert (project / "README").read_text() == "x\n"
    assert texts(session) == ["begin"]


def test_an_unknown_target_fails_before_anything_is_touched(
    session: Session, project: Path
) -> None:
    """Whatever it is named by."""
    shell(session, "echo x > README", project)
    for target in ("nothing", 999, "no-label"):
        with pytest.raises(NotFound):
            session.rewind(target)
    assert (project / "README").read_text() == "x\n"


def test_a_persons_edit_stays_and_is_a_conflict(session: Session, project: Path) -> None:
    """Unless asked to overwrite; then it is one undo away."""
    shell(session, "echo agent > README; echo agent > new", project)
    (project / "README").write_text("person\n")
    done = session.rewind(before=2)
    assert actions(done.conflicts) == {"README": "conflict"}
    assert (project / "README").read_text() == "person\n"
    assert not (project / "new").exists()
    done = session.rewind(before=2, on_conflict="overwrite")
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    session.undo()
    assert (project / "README").read_text() == "person\n"


def test_a_clean_merge_takes_out_only_the_sessions_lines(session: Session, project: Path) -> None:
    """Where both changed the same lines it stays a conflict."""
    shell(session, "sed -i s/one/ONE/ README; echo agent > src/main.py", project)
    (project / "README").write_text("ONE\ntwo\nthree\nfour\n")
    (project / "src/main.py").write_text("person\n")
    done = session.rewind(before=2, on_conflict="merge")
    assert actions(done.files) == {"README": "merge", "src/main.py": "conflict"}
    assert (project / "README").read_text() == "one\ntwo\nthree\nfour\n"
    assert (project / "src/main.py").read_text() == "person\n"
    session.undo()
    assert (project / "README").read_text() == "ONE\ntwo\nthree\nfour\n"


def test_aside_writes_beside_it(session: Session, project: Path) -> None:
    """The person's file stays where it is."""
    shell(session, "echo agent > README", project)
    (project / "README").write_text("person\n")
    session.rewind(before=2, on_conflict="aside")
    assert (project / "README").read_text() == "person\n"
    assert (project / "README.rewind-1").read_text() == "one\ntwo\nthree\n"


def test_both_ends_of_a_move_or_none(session: Session, project: Path) -> None:
    """A person's edit of the moved file holds its origin back too."""
    shell(session, "mv README READ.md", project)
    (project / "READ.md").write_text("edited by a person\n")
    done = session.rewind(before=2)
    assert {f.path: f.reason for f in done.conflicts} == {
        "READ.md": "changed since by somebody else",
        "README": "the other end of its move stays",
    }
    assert sorted(os.listdir(project)) == ["READ.md", "src"]


def test_exact_makes_all_equal(session: Session, project: Path) -> None:
    """Also what others did; undo gives it back."""
    point = session.checkpoint("here")
    seen = look(project)
    shell(session, "rm -rf src; chmod 600 README; ln -s README l", project)
    (project / "person").write_text("mine\n")
    before = look(project)
    session.rewind(point, mode="exact")
    assert look(project) == seen
    session.undo()
    assert look(project) == before


def test_modes_types_and_names_come_back(session: Session, project: Path) -> None:
    """All mode bits, links that lead nowhere, empty directories, names that are no UTF-8."""
    odd = os.fsencode(project) + b"/\xff\xfe\\n"
    (project / "private").write_text("secret")
    (project / "private").chmod(0o4600)
    (project / "empty").mkdir(mode=0o711)
    (project / "nowhere").symlink_to("does/not/exist")
    with open(odd, "w") as file:
        file.write("odd")
    session.append(user("now"))
    before = look(project)
    shell(session, "rm -rf empty private; rm nowhere; mkdir nowhere; touch nowhere/x", project)
    os.unlink(odd)
    with session.tool("bash"), open(odd, "w") as file:
        file.write("changed")
    done = session.rewind(3)
    assert "\\xff\\xfe\\\\n" in actions(done.files)
    with open(odd, "w") as file:
        file.write("odd")
    assert look(project) == before


def test_unchanged_files_keep_inode_and_mtime(session: Session, project: Path) -> None:
    """A rewind touches what it must and nothing else."""
    keep = (project / "src/main.py").stat()
    shell(session, "echo x > README", project)
    session.rewind(before=2)
    now = (project / "src/main.py").stat()
    assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (
        keep.st_ino,
        keep.st_mtime_ns,
        keep.st_ctime_ns,
    )


def test_a_missing_content_refuses_the_whole_rewind(session: Session, project: Path) -> None:
    """Before anything is touched; `paths` can leave it out."""
    content = (project / "README").read_bytes()
    shell(session, "echo x > README; echo x > src/main.py", project)
    depot = Depot.of(session.store)
    from backtrail.files.trees import digest_of

    depot.blobs.remove([digest_of(content)])
    depot.close()
    with pytest.raises((NotFound, Damaged), match="README"):
        session.rewind(before=2)
    assert (project / "src/main.py").read_text() == "x\n"
    session.rewind(before=2, paths=["src"])
    assert (project / "src/main.py").read_text() == "print('hello')\n"


def test_a_rule_that_changes_never_deletes(session: Session, project: Path) -> None:
    """`.gitignore` edited by the agent, or rewound, hides nothing that was captured."""
    (project / ".env").write_text("SECRET=1\n")
    (project / "out").mkdir()
    (project / "out/result").write_text("kept\n")
    point = session.append(user("ignore these"))
    shell(session, "printf '.env\\nout/\\n' > .gitignore; echo 2 > .env; rm -r out", project)
    session.rewind(point)
    assert (project / ".env").read_text() == "SECRET=1\n"
    assert (project / "out/result").read_text() == "kept\n"
    assert not (project / ".gitignore").exists()


def test_what_is_not_captured_is_never_touched(session: Session, project: Path) -> None:
    """Opaque directories, and files over the limit; what vanished is said."""
    (project / "node_modules/x").mkdir(parents=True)
    (project / "node_modules/x/i.js").write_text("x")
    with (project / "big").open("wb") as file:
        file.truncate(21 * 1024 * 1024)
    point = session.append(user("look"))
    assert {path for path, _, _ in session.not_captured()} == {"node_modules", "big"}
    shell(session, "rm -rf node_modules; echo small > big", project)
    plan = session.rewind(point, dry_run=True)
    assert {w.split(": ")[1].split()[0] for w in plan.warnings} == {"node_modules", "big"}
    session.rewind(point, mode="exact")
    assert (project / "big").read_text() == "small\n"


def test_a_file_that_cannot_be_read_is_reported_and_stays(session: Session, project: Path) -> None:
    """A pipe stands for it: it is never opened, and never deleted."""
    shell(session, "mkfifo pipe", project)
    assert [(p, r) for p, r, _ in session.not_captured()] == [("pipe", "a pipe")]
    session.rewind(before=2)
    assert stat.S_ISFIFO((project / "pipe").lstat().st_mode)


def test_the_root_itself_is_made_again(session: Session, project: Path) -> None:
    """After `rm -rf` of it, by the agent."""
    before = look(project)
    shell(session, f"rm -rf {project}", project.parent)
    assert not project.exists()
    session.rewind(before=2)
    assert look(project) == before


def test_the_store_inside_the_workspace_is_neither_captured_nor_restored(tmp_path: Path) -> None:
    """On every kind of store."""
    for url in ("sqlite:///{}/s.db", "file:{}/store"):
        root = tmp_path / url.partition(":")[0]
        root.mkdir()
        with Session.create(url.format(root), "s", cwd=root) as s:
            s.append(user("a"))
            shell(s, "echo x > x", root)
            s.append(user("b"))
            assert "files_changed" not in kinds(s)
            s.rewind(before=2, mode="exact")
            assert "x" not in os.listdir(root)
            assert [e.seq for e in s.events()][-1] == 5


def test_git_stays_as_it_is(session: Session, project: Path) -> None:
    """Byte by byte, and its own checks are as clean as before."""

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(
            command, cwd=project, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    point = session.append(user("go"))
    before, status = look(project / ".git"), git("status", "--porcelain")
    shell(session, "rm -r src; echo x > README", project)
    session.rewind(point)
    assert look(project / ".git") == before
    assert git("status", "--porcelain") == status == ""
    git("fsck", "--strict")


def test_a_moved_head_is_a_warning(session: Session, project: Path) -> None:
    """A rewind across a checkout mixes two branches: it says so."""
    (project / ".git").mkdir()
    (project / ".git/HEAD").write_text("ref: refs/heads/main\n")
    point = session.append(user("go"))
    shell(session, "echo x > README", project)
    (project / ".git/HEAD").write_text("ref: refs/heads/topic\n")
    plan = session.rewind(point, dry_run=True)
    assert plan.warnings == ["git had main checked out then, and has topic now"]
    assert session.undo(dry_run=True).warnings == plan.warnings


def test_checkpoints_carry_the_tree(session: Session, project: Path) -> None:
    """The same point and files are the same checkpoint, other files another one."""
    first = session.checkpoint("here")
    assert session.checkpoint("here").id == first.id
    (project / "README").write_text("person\n")
    second = session.checkpoint("here")
    assert second.id != first.id
    assert second.tree != first.tree
    session.rewind("here", mode="exact")
    assert (project / "README").read_text() == "person\n"
    session.rewind(first, mode="exact")
    assert (project / "README").read_text() == "one\ntwo\nthree\n"


def test_diff_between_points(session: Session, project: Path) -> None:
    """Unified, with counts, renames and modes."""
    shell(session, "sed -i s/two/2/ README; mv src/main.py app.py; chmod 755 app.py", project)
    middle = session.append(user("next"))
    shell(session, "rm app.py", project)
    whole = session.diff()
    assert [(f.path, f.status, f.old_path) for f in whole.files] == [
        ("README", "modified", None),
        ("src/main.py", "deleted", None),
    ]
    part = session.diff(2, middle)
    assert [(f.path, f.status, f.old_path) for f in part.files] == [
        ("README", "modified", None),
        ("app.py", "renamed", "src/main.py"),
    ]
    assert (part.insertions, part.deletions) == (1, 1)
    assert "-two\n+2\n" in str(part)
    assert [f.path for f in session.diff(middle, paths=["app.py"]).files] == ["app.py"]


def test_a_fork_in_a_new_directory(session: Session, project: Path, tmp_path: Path) -> None:
    """Its files are those of the point, and it goes its own way."""
    point = session.append(user("here"))
    before = look(project)
    shell(session, "echo x > README", project)
    with session.fork(at=point, into=tmp_path / "plan-b") as fork:
        assert look(tmp_path / "plan-b") == before
        shell(fork, "echo fork > README", tmp_path / "plan-b")
        assert (project / "README").read_text() == "x\n"
        fork.rewind(point)
        assert look(tmp_path / "plan-b") == before
    with pytest.raises(ValueError, match="not empty"):
        session.fork(into=project)


def test_a_fork_keeps_its_contents_when_the_parent_goes(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """References are copied, so collecting garbage takes nothing of it."""
    shell(session, "echo x > README", project)
    fork = session.fork()
    session.store.delete("s")
    depot = Depot.of(session.store)
    assert {r.log for r in depot.blobs.references()} == {"s", fork.id}
    depot.close()
    fork.rewind(before=2)
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    fork.close()


def test_a_moved_folder_is_known_again(session: Session, project: Path, tmp_path: Path) -> None:
    """`resume(cwd=…)` binds it; another tree at the old place is refused."""
    shell(session, "echo x > README", project)
    moved = tmp_path / "moved"
    project.rename(moved)
    with Session.resume(session.store, "s", cwd=moved) as s:
        s.append(user("here now"))
        assert "files_changed" not in kinds(s)
        s.rewind(before=2)
        assert (moved / "README").read_text() == "one\ntwo\nthree\n"
    shutil.rmtree(moved)
    moved.mkdir()
    (moved / "else").write_text("another project\n")
    with Session.resume(session.store, "s") as s:
        with pytest.raises(Conflict, match="relocate"):
            s.append(user("hello?"))
        assert {f.path for f in s.relocate().files} == {"README", "else", "src/main.py"}
        s.append(user("hello"))
        assert os.listdir(moved) == ["else"]


def test_the_next_process_finishes_a_restore_that_was_cut_short(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also who was here a moment before it began, and left nothing to finish."""

    class Cut(BaseException):
        pass

    def cut_short(*_: object) -> None:
        raise Cut

    with Session.open(session.store, "other", cwd=project) as other:
        other.append(user("begin"))
        with session.tool("edit", paths=["README"]):
            (project / "README").write_text("wrong\n")
        other.append(user("what do you see?"))
        with monkeypatch.context() as broken:
            broken.setattr(Restore, "apply", cut_short)
            with pytest.raises(Cut):
                session.rewind(before=2)
        assert (project / "README").read_text() == "wrong\n"
        other.append(user("and now?"))
        assert (project / "README").read_text() == "one\ntwo\nthree\n"


def test_another_process_resumes_and_rewinds(session: Session, project: Path) -> None:
    """All that is needed is in the store."""
    shell(session, "echo x > README; rm -r src", project)
    from tests.talking import child

    url = session.store.url
    child(f"from backtrail import Session\nSession.resume({url!r}, 's').rewind(before=2)")
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    assert texts(session) == []
    session.undo()
    assert (project / "README").read_text() == "x\n"


def test_same_size_and_time_is_still_seen(session: Session, project: Path) -> None:
    """An edit that resets the time of the file, as `touch -r` does."""
    os.utime(project / "README", (1, 1))
    session.append(user("now"))
    with session.tool("bash"):
        (project / "README").write_text("eno\ntwo\nthree\n")
        os.utime(project / "README", (1, 1))
    session.rewind(before=2)
    assert (project / "README").read_text() == "one\ntwo\nthree\n"


def test_other_stores_in_the_workspace_are_left_alone(session: Session, project: Path) -> None:
    """A rewind of files must not rewind another's log."""
    for url in (f"sqlite:///{project}/other.db", f"file:{project}/logs"):
        with Session.create(url, "o") as other:
            other.append(user("kept"))
    point = session.append(user("now"))
    with session.tool("bash"):
        for url in (f"sqlite:///{project}/other.db", f"file:{project}/logs"):
            with Session.open(url, "o") as other:
                other.append(user("more"))
    assert "files" not in next(session.events(reverse=True, limit=1)).data
    session.rewind(point, mode="exact")
    for url in (f"sqlite:///{project}/other.db", f"file:{project}/logs"):
        with Session.open(url, "o") as other:
            assert texts(other) == ["kept", "more"]


@pytest.mark.parametrize("mode", ["mine", "exact"])
def test_one_file_of_a_folder_that_is_gone(session: Session, project: Path, mode: str) -> None:
    """The way to it is made again, and nothing else of the folder."""
    (project / "src" / "deep" / "er").mkdir(parents=True)
    (project / "src" / "deep" / "er" / "a").write_text("a")
    (project / "src" / "deep" / "b").write_text("b")
    point = session.append(user("go"))
    before = look(project)
    shell(session, "rm -rf src README", project)
    done = session.rewind(point, scope="files", mode=mode, paths=["src/deep/er/a"])  # type: ignore[arg-type]
    way = {"src", "src/deep", "src/deep/er", "src/deep/er/a"}
    assert actions(done.files) == dict.fromkeys(way, "create")
    assert look(project) == {path: before[path] for path in way}
    session.undo()
    assert os.listdir(project) == []
    # A folder that something else took the place of stays.
    (project / "src").write_text("mine")
    done = session.rewind(point, scope="files", mode="mine", paths=["src/deep/er/a"])
    assert {file.action for file in done.files} == {"conflict"}
    assert (project / "src").read_text() == "mine"
    nothing = session.rewind(point, scope="files", paths=["src/none"])
    assert not nothing.files


def test_another_appends_while_a_rewind_is_recorded(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files have moved, so the rewind is recorded all the same, behind what came in between."""
    shell(session, "echo new > new", project)
    take = session.store.append
    came = iter(range(7))

    def late(id: str, events: Sequence[NewEvent], **how: Json) -> list[Event]:
        if any(event.kind == "rewound" for event in events) and next(came, None) is not None:
            take(id, [NewEvent("note", {})])
        return take(id, events, **how)

    monkeypatch.setattr(session.store, "append", late)
    session.rewind(2)
    assert not (project / "new").exists()
    assert kinds(session)[-8:] == [*["note"] * 7, "rewound"]
    assert session.parts.capture.workspace is not None
    assert (
        session.parts.capture.workspace.catalogue.journal(session.parts.capture.workspace.place.n)
        is None
    )
    session.undo()
    assert (project / "new").exists()


def test_the_tree_that_a_restore_records_is_the_one_on_the_disk(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """Of a rewind, its undo and a restore of one file: written elsewhere, it is the same bytes."""
    point = session.append(user("work"))
    commands = "echo b > README; mkdir -p new/in; echo x > new/in/f; chmod 700 src; ln -s README l"
    shell(session, commands, project)
    steps: list[Callable[[], object]] = [
        lambda: session.rewind(before=point),
        session.undo,
        lambda: session.rewind(before=point, scope="files", paths=[str(project / "README")]),
    ]
    for number, step in enumerate(steps):
        step()
        event = next(session.events(reverse=True, limit=1))
        tree = bytes.fromhex(event.data["files"]["after"])
        depot = Depot.of(session.store)
        try:
            write_tree(depot.blobs.get, tree, tmp_path / f"copy-{number}")
        finally:
            depot.close()
        assert look(tmp_path / f"copy-{number}") == look(project), number
        assert session.diff(event).files == []
