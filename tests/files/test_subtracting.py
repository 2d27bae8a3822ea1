"""Taking changes out of files that others edit too: nothing of a person's is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from backtrail import Rewind, Session
from backtrail.files.depot import Depot
from backtrail.files.restore.conflicts import OnConflict
from backtrail.files.trees import digest_of
from tests.files.conftest import shell
from tests.files.world import look
from tests.talking import texts, user

LINES = "import a\n1\n2\n3\n4\n5\nend\n"


@pytest.fixture
def file(project: Path) -> Path:
    """A file of seven lines, each of its own."""
    path = project / "f.py"
    path.write_text(LINES)
    return path


@pytest.fixture
def session(tmp_path: Path, project: Path, file: Path) -> Iterator[Session]:
    """A session that begins after the file was written."""
    with Session.create(f"sqlite:///{tmp_path}/store.db", "s", cwd=project) as session:
        session.append(user("begin"))
        yield session


def turn(session: Session, command: str, cwd: Path) -> int:
    """One turn with one shell command; the number of its message."""
    event = session.append(user(command))
    shell(session, command, cwd)
    return event.seq


def mine(path: Path, line: str = "# mine\n") -> None:
    """A person appends a line."""
    with path.open("a") as file:
        file.write(line)


def two_turns(session: Session, project: Path, file: Path) -> int:
    """Two turns that each change a line, and a person's between them; the first one's number."""
    first = turn(session, "sed -i s/import/IMPORT/ f.py", project)
    mine(file)
    turn(session, "sed -i s/^3/three/ f.py", project)
    return first


def actions(done: Rewind) -> dict[str, str]:
    """What a rewind did to each path."""
    return {file.path: file.action for file in done.files}


# --- merge subtracts ---------------------------------------------------------------------


def test_lines_written_between_two_turns_stay(session: Session, project: Path, file: Path) -> None:
    """Both turns are taken out, newest first; the person's line is not theirs."""
    first = two_turns(session, project, file)
    done = session.rewind(before=first, on_conflict="merge")
    assert actions(done) == {"f.py": "merge"}
    assert file.read_text() == LINES + "# mine\n"


def test_twice_is_the_same_as_once(session: Session, project: Path, file: Path) -> None:
    """Also by way of single files, and the second time there is nothing to keep either."""
    first = two_turns(session, project, file)
    session.rewind(before=first, on_conflict="merge")
    for on_conflict in ("merge", "keep", "overwrite"):
        done = session.rewind(
            before=first, scope="files", paths=["f.py"], on_conflict=on_conflict
        )  # fmt: skip
        assert done.conflicts == []
        assert file.read_text() == LINES + "# mine\n"


def test_a_merge_can_be_undone_redone_and_made_again(
    session: Session, project: Path, file: Path
) -> None:
    """With a person who goes on writing all the time."""
    first = two_turns(session, project, file)
    changed = file.read_text()
    session.rewind(before=first, on_conflict="merge")
    session.undo()
    assert file.read_text() == changed
    session.redo()
    assert file.read_text() == LINES + "# mine\n"
    mine(file, "# more\n")
    assert actions(session.undo(on_conflict="merge")) == {"f.py": "merge"}
    assert file.read_text() == changed + "# more\n"
    session.rewind(before=first, on_conflict="merge")
    assert file.read_text() == LINES + "# mine\n# more\n"


def test_a_plain_rewind_after_overwrite_and_undo_keeps_a_person_s_lines(
    session: Session, project: Path, file: Path
) -> None:
    """The undo brings back what was there, and with it who wrote it."""
    first = two_turns(session, project, file)
    changed = file.read_text()
    session.rewind(before=first, on_conflict="overwrite")
    assert file.read_text() == LINES
    session.undo()
    done = session.rewind(before=first)
    assert actions(done) == {"f.py": "conflict"}
    assert file.read_text() == changed


def test_overlapping_lines_stay_a_conflict(session: Session, project: Path, file: Path) -> None:
    """Bytes unchanged, and named."""
    first = turn(session, "sed -i s/^3/three/ f.py", project)
    file.write_text(file.read_text().replace("three", "three, I think"))
    before = file.read_bytes()
    done = session.rewind(before=first, on_conflict="merge")
    assert actions(done) == {"f.py": "conflict"}
    assert "overlap" in done.conflicts[0].reason
    assert file.read_bytes() == before


def test_a_line_that_a_person_moved_is_not_kept_as_theirs(
    session: Session, project: Path, file: Path
) -> None:
    """It is the agent's line, elsewhere: a question, so a conflict."""
    first = turn(session, "sed -i 's/^2$/2\\nagent/' f.py", project)
    file.write_text("import a\n1\n2\n3\n4\n5\nagent\nend\n")
    before = file.read_bytes()
    done = session.rewind(before=first, on_conflict="merge")
    assert actions(done) == {"f.py": "conflict"}
    assert file.read_bytes() == before


@pytest.mark.parametrize("cut", [b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xe2\x80\xa8"])
def test_lines_end_at_a_newline_only(
    session: Session, project: Path, file: Path, cut: bytes
) -> None:
    """Two edits inside one line overlap, whatever else may look like the end of a line."""
    file.write_bytes(b"head\none" + cut + b"mid" + cut + b"two\ntail\n")
    session.append(user("look"))
    first = turn(session, "sed -i s/one/ONE/ f.py", project)
    file.write_bytes(file.read_bytes().replace(b"two", b"TWO"))
    before = file.read_bytes()
    assert actions(session.rewind(before=first, on_conflict="merge")) == {"f.py": "conflict"}
    assert file.read_bytes() == before


def test_odd_ends_of_lines_survive(session: Session, project: Path, file: Path) -> None:
    """Byte by byte, and without a newline at the end."""
    file.write_bytes(b"a\r\nb\x0c\nc\x85\xff\nd\ne\x0bf")
    session.append(user("look"))
    first = turn(session, "sed -i s/a/AGENT/ f.py", project)
    file.write_bytes(file.read_bytes().replace(b"d\n", b"d\r\nmine\x0c\n"))
    assert actions(session.rewind(before=first, on_conflict="merge")) == {"f.py": "merge"}
    assert file.read_bytes() == b"a\r\nb\x0c\nc\x85\xff\nd\r\nmine\x0c\ne\x0bf"


def test_modes_merge_apart(session: Session, project: Path, file: Path) -> None:
    """Of the content and of each other."""
    file.chmod(0o644)
    session.append(user("look"))
    first = turn(session, "chmod 755 f.py; sed -i s/import/IMPORT/ f.py; chmod 755 f.py", project)
    mine(file)
    assert actions(session.rewind(before=first, on_conflict="merge")) == {"f.py": "merge"}
    assert (file.read_text(), file.stat().st_mode & 0o777) == (LINES + "# mine\n", 0o644)
    second = turn(session, "sed -i s/import/IMPORT/ f.py", project)
    file.chmod(0o600)
    assert actions(session.rewind(before=second, on_conflict="merge")) == {"f.py": "merge"}
    assert (file.read_text(), file.stat().st_mode & 0o777) == (LINES + "# mine\n", 0o600)


def test_what_cannot_be_subtracted_is_a_named_conflict(
    session: Session, project: Path, file: Path
) -> None:
    """Made, removed, binary, a link: bytes unchanged."""
    (project / "gone").write_text(LINES)
    (project / "binary").write_bytes(b"a\0\nb\nc\n")
    (project / "link").symlink_to("f.py")
    (project / "became").write_text(LINES)
    session.append(user("look"))
    first = turn(
        session,
        "printf 'x\\ny\\n' > made; rm gone; printf 'A\\0\\nb\\nc\\n' > binary; ln -sf README link;"
        " sed -i s/import/IMPORT/ became",
        project,
    )
    mine(project / "made")
    (project / "gone").write_text("mine\n")
    mine(project / "binary")
    (project / "link").unlink()
    (project / "link").symlink_to("elsewhere")
    (project / "became").unlink()
    (project / "became").symlink_to("f.py")
    before = look(project)
    done = session.rewind(before=first, on_conflict="merge")
    names = ("made", "gone", "binary", "link", "became")
    assert actions(done) == dict.fromkeys(names, "conflict")
    assert all("no merge" in file.reason for file in done.conflicts)
    assert look(project) == before


def test_a_dropped_content_is_a_named_conflict(session: Session, project: Path, file: Path) -> None:
    """What cannot be compared cannot be subtracted."""
    first = turn(session, "sed -i s/import/IMPORT/ f.py", project)
    left = file.read_bytes()
    mine(file)
    depot = Depot.of(session.store)
    depot.blobs.remove([digest_of(left)])
    depot.close()
    before = file.read_bytes()
    done = session.rewind(before=first, on_conflict="merge")
    assert actions(done) == {"f.py": "conflict"}
    assert file.read_bytes() == before


def test_a_rename_with_edits_goes_back_whole_or_not_at_all(
    session: Session, project: Path, file: Path
) -> None:
    """A person's edit of the new name holds the old one back, over two renames too."""
    first = turn(session, "mv f.py g.py; sed -i s/^3/three/ g.py", project)
    turn(session, "mv g.py h.py", project)
    mine(project / "h.py")
    before = look(project)
    done = session.rewind(before=first, on_conflict="merge")
    assert actions(done) == {"f.py": "conflict", "h.py": "conflict"}
    assert look(project) == before
    session.rewind(before=first, on_conflict="overwrite")
    assert file.read_text() == LINES
    assert not (project / "h.py").exists()


def test_only_conflicts_are_merged(session: Session, project: Path, file: Path) -> None:
    """A file that no other touched goes back as always."""
    first = turn(session, "sed -i s/import/IMPORT/ f.py; echo x >> README", project)
    mine(file)
    done = session.rewind(before=first, on_conflict="merge")
    assert actions(done) == {"f.py": "merge", "README": "write"}


def test_an_uncertain_change_is_not_subtracted(
    session: Session, project: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a person saved during a shell call is part of what it left."""
    monkeypatch.setattr("backtrail.files.workspace.workspace.LONG_CALL", -1.0)
    first = turn(
        session, "sed -i s/import/IMPORT/ f.py; echo '# saved by a person' >> f.py", project
    )
    monkeypatch.undo()
    turn(session, "sed -i s/^3/three/ f.py", project)
    mine(file)
    before = file.read_bytes()
    done = session.rewind(before=first, on_conflict="merge")
    assert actions(done) == {"f.py": "conflict"}
    assert file.read_bytes() == before


def test_each_of_two_sessions_takes_out_its_own(tmp_path: Path, project: Path, file: Path) -> None:
    """A file that both changed, one after the other; a person's line stays in both cases."""
    url = f"sqlite:///{tmp_path}/store.db"
    with Session.create(url, "a", cwd=project) as a, Session.create(url, "b", cwd=project) as b:
        first = turn(a, "sed -i s/import/IMPORT/ f.py", project)
        other = turn(b, "sed -i s/^3/three/ f.py", project)
        mine(file)
        turn(a, "sed -i s/^5/five/ f.py", project)
        assert actions(a.rewind(before=first, on_conflict="merge")) == {"f.py": "merge"}
        assert file.read_text() == LINES.replace("3", "three") + "# mine\n"
        assert actions(b.rewind(before=other, on_conflict="merge")) == {"f.py": "merge"}
        assert file.read_text() == LINES + "# mine\n"
        for session, point in ((a, first), (b, other)):
            assert session.rewind(before=point, on_conflict="merge").files == []
        assert file.read_text() == LINES + "# mine\n"


def test_a_shared_change_is_not_subtracted(tmp_path: Path, project: Path, file: Path) -> None:
    """Two calls of two sessions at once: who wrote what cannot be said."""
    url = f"sqlite:///{tmp_path}/store.db"
    with Session.create(url, "a", cwd=project) as a, Session.create(url, "b", cwd=project) as b:
        first = a.append(user("go"))
        b.append(user("go"))
        with a.tool("bash"), b.tool("bash"):
            subprocess.run("sed -i s/import/IMPORT/ f.py", shell=True, check=True, cwd=project)
        mine(file)
        before = file.read_bytes()
        done = a.rewind(before=first, on_conflict="merge")
        assert actions(done) == {"f.py": "conflict"}
        assert file.read_bytes() == before


def test_a_person_s_version_that_the_agent_replaced_is_no_success(
    session: Session, project: Path, file: Path
) -> None:
    """The file is as it was at first, and what a person wrote in between is not in it."""
    first = turn(session, "sed -i s/import/IMPORT/ f.py", project)
    mine(file)
    with session.tool("write"):
        file.write_text(LINES)
    done = session.rewind(before=first)
    assert actions(done) == {"f.py": "conflict"}


# --- moved files -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moves", "path"),
    [
        ("mv f.py g.py", "g.py"),
        ("mv f.py g.py; sed -i s/^3/three/ g.py", "g.py"),
        ("mkdir new; mv f.py new/", "new"),
        ("mkdir new; mv f.py new/g.py", "new/g.py"),
    ],
)
@pytest.mark.parametrize("on_conflict", ["keep", "merge", "aside"])
def test_a_moved_file_does_not_just_go(
    session: Session, project: Path, file: Path, moves: str, path: str, on_conflict: OnConflict
) -> None:
    """Of one that comes back under a name left out, the new name stays, with what is in it."""
    mine(file)
    first = turn(session, moves, project)
    before = {found.name: found.read_text() for found in project.rglob("*.py")}
    back = partial(session.rewind, before=first, scope="files")
    seen = back(paths=[path], on_conflict=on_conflict, dry_run=True)
    done = back(paths=[path], on_conflict=on_conflict)
    assert seen.files == done.files
    (kept,) = done.conflicts
    assert "moved from f.py" in kept.reason
    assert {found.name: found.read_text() for found in project.rglob("*.py")} == before
    assert not back(paths=[path, "f.py"]).conflicts
    assert not any(project.rglob("g.py"))
    assert file.read_text() == LINES + "# mine\n"


def test_a_moved_file_goes_once_it_is_back_or_where_it_is_said(
    session: Session, project: Path, file: Path
) -> None:
    """Over two moves; `overwrite` decides here as everywhere."""
    first = turn(session, "mv f.py g.py", project)
    turn(session, "mv g.py h.py", project)
    back = partial(session.rewind, before=first, scope="files")
    assert actions(back(paths=["h.py"])) == {"h.py": "conflict"}
    assert actions(back(paths=["h.py"], on_conflict="overwrite")) == {"h.py": "delete"}
    session.undo()
    assert actions(back(paths=["f.py"])) == {"f.py": "create"}
    assert actions(back(paths=["h.py"])) == {"h.py": "delete"}
    assert file.read_text() == LINES


# --- undo takes back its operation -------------------------------------------------------


def test_undo_of_one_file_has_nothing_to_do_with_another(session: Session, project: Path) -> None:
    """However often the other went to and fro, and whatever a person wrote there."""
    a, b = project / "a.txt", project / "b.txt"
    a.write_text(LINES)
    b.write_text("b\n")
    session.append(user("look"))
    first = turn(session, "sed -i s/import/IMPORT/ a.txt; rm b.txt", project)
    session.rewind(before=first, scope="files", paths=["b.txt"])
    session.rewind(before=first)
    session.undo()
    mine(a)
    kept = a.read_bytes()
    done = session.undo(on_conflict="overwrite")
    assert actions(done) == {"b.txt": "delete"}
    assert (a.read_bytes(), b.exists()) == (kept, False)
    done = session.undo(on_conflict="merge")
    assert actions(done) == {"a.txt": "merge", "b.txt": "create"}
    assert (a.read_text(), b.read_text()) == (LINES + "# mine\n", "b\n")


def test_undo_after_a_kept_conflict_and_redo_takes_back_the_rest(
    session: Session, project: Path, file: Path
) -> None:
    """The change is still in effect, so the second undo has it."""
    turn(session, "sed -i s/import/IMPORT/ f.py; echo x > new", project)
    mine(file)
    assert actions(session.undo()) == {"f.py": "conflict", "new": "delete"}
    session.redo()
    assert actions(session.undo(on_conflict="merge")) == {"f.py": "merge", "new": "delete"}
    assert file.read_text() == LINES + "# mine\n"


def test_undo_with_a_choice_finishes_an_undo_that_kept_something(
    session: Session, project: Path, file: Path
) -> None:
    """It never reaches an older turn; redo brings back all of it, undo takes it again."""
    turn(session, "echo older > older", project)
    turn(session, "sed -i s/import/IMPORT/ f.py; echo x > new", project)
    mine(file)
    changed = file.read_text()
    said = texts(session)
    assert session.undo().conflicts
    after = texts(session)
    done = session.undo(on_conflict="merge")
    assert (actions(done), texts(session)) == ({"f.py": "merge"}, after)
    assert file.read_text() == LINES + "# mine\n"
    assert (project / "older").exists()
    session.redo()
    assert (file.read_text(), (project / "new").exists()) == (changed, True)
    assert texts(session) == said
    session.undo(on_conflict="merge")
    assert file.read_text() == LINES + "# mine\n"
    session.undo(on_conflict="merge")
    assert not (project / "older").exists()


def test_an_undo_that_cannot_be_finished_stays_there(
    session: Session, project: Path, file: Path
) -> None:
    """A choice that leaves the conflict appends nothing, and reaches nothing older."""
    turn(session, "echo older > older", project)
    turn(session, "sed -i s/^3/three/ f.py", project)
    file.write_text(file.read_text().replace("three", "drei"))
    session.undo()
    reported = [event.id for event in session.events()]
    for _ in range(2):
        assert actions(session.undo(on_conflict="merge")) == {"f.py": "conflict"}
    assert [event.id for event in session.events()] == reported
    assert (project / "older").exists()
    assert actions(session.undo()) == {"older": "delete"}


def test_redo_takes_back_the_undo_alone(session: Session, project: Path, file: Path) -> None:
    """A path that the undo did not touch is not reported."""
    turn(session, "sed -i s/import/IMPORT/ f.py", project)
    session.undo()
    mine(project / "README")
    mine(file)
    assert actions(session.redo()) == {"f.py": "conflict"}


def test_turns_undone_one_by_one_through_a_person_s_edits(
    session: Session, project: Path, file: Path
) -> None:
    """Each undo takes out its own turn, each redo brings it back."""
    states = [LINES]
    for number, word in ((1, "one"), (3, "three"), (5, "five")):
        turn(session, f"sed -i s/^{number}/{word}/ f.py", project)
        states.append(file.read_text())
    mine(file)
    for state in reversed(states[:-1]):
        assert actions(session.undo(on_conflict="merge")) == {"f.py": "merge"}
        assert file.read_text() == state + "# mine\n"
    for state in states[1:]:
        session.redo(on_conflict="merge")
        assert file.read_text() == state + "# mine\n"


def test_work_that_goes_on_after_an_undo_is_taken_back_with_the_older_turn(
    session: Session, project: Path
) -> None:
    """As its events leave the conversation then, so do its files."""
    turn(session, "echo 1 > one", project)
    turn(session, "echo 2 > two", project)
    session.undo()
    shell(session, "echo 3 > three", project)
    assert actions(session.undo()) == {"one": "delete", "three": "delete"}


def test_what_a_redo_wrote_beside_goes_with_an_undo(session: Session, project: Path) -> None:
    """A redo puts a file beside a conflict: the undo after it leaves what was there before."""
    (project / "a").write_text("a\n")
    session.append({"role": "user", "content": "go"})
    with session.tool("bash"):
        (project / "a").write_text("agent\n")
    session.undo()
    (project / "a").write_text("person\n")
    before = look(project)
    session.redo(on_conflict="aside")
    assert len(look(project)) == len(before) + 1
    session.undo()
    assert look(project) == before


def test_an_undo_after_a_redo_brings_back_what_that_overwrote(
    session: Session, project: Path, file: Path
) -> None:
    """A redo over what a person wrote is one undo away, byte by byte; so is a rewind from it."""
    before = turn(session, "echo agent >> f.py", project)
    session.undo()
    mine(file)
    there = file.read_text()
    session.redo(on_conflict="overwrite")
    assert file.read_text() == LINES + "agent\n"
    session.undo()
    assert file.read_text() == there
    session.redo()
    assert file.read_text() == LINES + "agent\n"
    session.rewind(before=before)
    assert file.read_text() == there


# --- why a path is kept --------------------------------------------------------------------


def test_a_conflict_says_why_in_a_word(session: Session, project: Path, file: Path) -> None:
    """Programs need not read the sentence; and why no merge is possible stands apart."""
    other = project / "other.txt"
    first = turn(session, "sed -i s/import/IMPORT/ f.py; echo made > other.txt", project)
    mine(file)
    mine(other)
    found = {one.path: one for one in session.rewind(before=first, dry_run=True).conflicts}
    assert {path: one.code for path, one in found.items()} == {
        "f.py": "since",
        "other.txt": "since",
    }
    merged = session.rewind(before=first, on_conflict="merge", dry_run=True)
    (kept,) = merged.conflicts
    assert (kept.path, kept.code, kept.no_merge) == ("other.txt", "since", "the session created it")
    assert all(one.code == "" for one in merged.files if one.action != "conflict")
    turn(session, "sed -i s/^3/three/ f.py", project)
    (kept,) = [o for o in session.rewind(before=first, dry_run=True).conflicts if o.path == "f.py"]
    assert kept.code == "between"
    session.rewind(before=first, paths=[str(other)], on_conflict="overwrite")
    assert not other.exists()
