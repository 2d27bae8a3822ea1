"""Others' work stays: people's, other sessions', and what lies beside the project."""

from __future__ import annotations

import os
from contextlib import suppress
from unittest import mock

from .driver import Driver, Refused
from .stage import Stage


def human_edit_after_agent_edit_survives(stage: Stage) -> None:
    """Undo overwrote what a person had written into a file after the agent had."""
    stage.start("a.py")
    with stage.turn() as token:
        stage.write("a.py", "agent\n")
    stage.write("a.py", "agent\nperson\n")
    stage.restore(token)
    stage.expect_file("a.py", "agent\nperson\n")


def human_edit_between_agent_edits_survives(stage: Stage) -> None:
    """A person's edit between two of the agent's was taken for the agent's."""
    stage.start("a.py")
    with stage.turn() as token:
        stage.write("a.py", "agent\n")
    stage.write("a.py", "agent\nperson\n")
    with stage.agent():
        stage.write("a.py", "agent\nperson\nagent\n")
    stage.restore(token)
    stage.expect_file("a.py", "agent\nperson\nagent\n")


def human_edit_of_another_file_survives(stage: Stage) -> None:
    """Undo put files back that only a person had changed."""
    stage.start("a.py", "b.py")
    with stage.turn() as token:
        stage.write("a.py", "agent\n")
    stage.write("b.py", "person\n")
    os.remove(stage.write("c.py", "c"))
    stage.restore(token)
    stage.expect_files({"a.py": "a.py\n", "b.py": "person\n"})


def file_a_person_deleted_stays_deleted(stage: Stage) -> None:
    """What a person had thrown away came back with the agent's files."""
    stage.start("a.py", "junk")
    with stage.turn() as token:
        stage.write("a.py", "agent\n")
    os.remove(stage.root / "junk")
    stage.restore(token)
    stage.expect_files({"a.py": "a.py\n", "junk": None})


def file_a_person_made_again_survives(stage: Stage) -> None:
    """The agent deleted a file, a person wrote it anew, and undo put the old one over it."""
    stage.start("a.py")
    with stage.turn() as token:
        os.remove(stage.root / "a.py")
    stage.write("a.py", "person\n")
    stage.restore(token)
    stage.expect_file("a.py", "person\n")


def file_the_agent_moved_and_a_person_edited_survives(stage: Stage) -> None:
    """Undo of a move took back, or lost, what a person wrote at the new place."""
    stage.start("old.py")
    with stage.turn() as token:
        os.rename(stage.root / "old.py", stage.root / "new.py")
    stage.write("new.py", "old.py\nperson\n")
    stage.restore(token)
    stage.expect_file("new.py", "old.py\nperson\n")


def files_the_agent_only_read_stay(stage: Stage) -> None:
    """A gigabyte of results that the agent had only read was cleaned away."""
    stage.start("plot.py")
    token = stage.checkpoint()
    stage.write("results/run1.csv", "1,2,3\n")
    with stage.agent():
        stage.read("results/run1.csv")
        stage.write("plot.py", "agent\n")
    stage.restore(token)
    stage.expect_file("plot.py", "plot.py\n")
    stage.expect_file("results/run1.csv", "1,2,3\n")


def person_keeps_a_file_in_the_agents_directory(stage: Stage) -> None:
    """A directory the agent had made was removed with what a person had put into it."""
    stage.start("a")
    with stage.turn() as token:
        stage.write("made/agent.txt", "agent\n")
    stage.write("made/person.txt", "person\n")
    stage.restore(token)
    stage.expect_files({"made/person.txt": "person\n", "made/agent.txt": None})


def pull_between_checkpoint_and_restore_survives(stage: Stage) -> None:
    """A restore to an old base deleted almost all of a code base that had come since."""
    stage.start("main.py")
    token = stage.checkpoint()
    for number in range(40):
        stage.write(f"pulled/module{number}.py", f"{number}\n")
    pulled = stage.state(stage.root / "pulled")
    with stage.agent():
        stage.write("main.py", "agent\n")
    stage.restore(token)
    stage.expect_file("main.py", "main.py\n")
    stage.expect(stage.state(stage.root / "pulled") == pulled, "what was pulled is gone")


def restore_of_a_large_tree_deletes_nothing(stage: Stage) -> None:
    """A restore in a large project deleted almost all of its files, committed or not."""
    stage.git("init", "-q")
    stage.write(".gitignore", "ignored/\n")
    for number in range(600):
        stage.write(f"{('src', 'new', 'ignored')[number % 3]}/{number}.txt", f"{number}\n")
    stage.git("add", "src")
    stage.git("commit", "-qm", "all")
    stage.start()
    token = stage.checkpoint()
    before = stage.state()
    with stage.agent():
        stage.write("src/0.txt", "agent\n")
    stage.restore(token)
    stage.expect_state(before)


def old_baseline_is_not_used_again(stage: Stage) -> None:
    """One baseline was used for weeks, and then the whole tree was put back to it."""
    stage.start("a", "b", "c")
    stage.checkpoint()
    stage.driver.stop()
    stage.write("a", "weeks of work\n")
    stage.write("d", "more\n")
    stage.driver.start(stage.root)
    with stage.turn() as token:
        stage.write("b", "agent\n")
    stage.restore(token)
    stage.expect_files({"a": "weeks of work\n", "b": "b\n", "d": "more\n"})


def session_in_a_subdirectory_leaves_siblings_alone(stage: Stage) -> None:
    """A session in one package put weeks-old versions of the other packages back."""
    stage.write("one/a", "a\n")
    sibling = stage.write("two/b", "b\n")
    stage.git("init", "-q")
    stage.driver.start(stage.root / "one")
    with stage.turn() as token:
        stage.write("one/a", "agent\n")
    sibling.write_text("person\n")
    stage.write("new", "new\n")
    stage.driver.restore_all(token)
    stage.expect_files({"one/a": "a\n", "two/b": "person\n", "new": "new\n"})


def undo_in_one_session_spares_the_other(stage: Stage) -> None:
    """Undo in one session took back what another had done in the same directory."""
    stage.start("a", "b")
    with stage.neighbour() as other:
        with stage.turn() as token:
            stage.write("a", "first\n")
        with other.call():
            stage.write("b", "second\n")
            stage.write("c", "second\n")
        stage.restore(token)
    stage.expect_files({"a": "a\n", "b": "second\n", "c": "second\n"})


def file_of_two_sessions_is_not_taken_from_either(stage: Stage) -> None:
    """Two sessions edited one file; undo in the first lost the second's work."""
    stage.start("a")
    with stage.neighbour() as other:
        with stage.turn() as token:
            stage.write("a", "first\n")
        with other.call():
            stage.write("a", "first\nsecond\n")
        stage.restore(token)
    stage.expect_file("a", "first\nsecond\n")


def snapshot_of_one_worktree_is_not_restored_onto_another(stage: Stage) -> None:
    """A snapshot of one checkout was put onto another that stood at the same place."""
    stage.start("a", "b")
    with stage.turn() as token:
        stage.write("a", "agent\n")
    stage.driver.stop()
    os.rename(stage.root, stage.folder / "moved")
    stage.write("a", "another checkout\n")
    stage.write("z", "z\n")
    before = stage.state()
    with suppress(Refused):
        stage.driver.start(stage.root)
        stage.restore(token)
    stage.expect_state(before, "the other checkout was changed")


def moved_project_goes_on(stage: Stage) -> None:
    """A project that was moved lost its history."""
    stage.start("a")
    with stage.turn() as token:
        stage.write("a", "agent\n")
    stage.driver.stop()
    os.rename(stage.root, stage.folder / "moved")
    stage.root = stage.folder / "moved"
    stage.driver.start(stage.root)
    stage.restore(token)
    stage.expect_file("a", "a\n")


def home_as_root_is_refused(stage: Stage) -> None:
    """The root of a session was the home folder: hundreds of gigabytes were copied."""
    stage.write("photos/1.jpg", "1")
    with mock.patch.dict(os.environ, HOME=str(stage.root)):
        try:
            stage.driver.start(stage.root)
        except Refused:
            return
    stage.expect(False, "a whole home folder is watched over, without asking")


def dirty_gitignore_never_deletes(stage: Stage) -> None:
    """A restore took back the line of `.gitignore` that protected files, then cleaned them."""
    stage.write(".gitignore", "*.log\n")
    stage.start("main.py")
    token = stage.checkpoint()
    stage.write(".gitignore", "*.log\ndata/\n")
    stage.write("data/results.csv", "1,2,3\n")
    with stage.agent():
        stage.write("main.py", "agent\n")
    stage.restore(token)
    stage.expect_file("main.py", "main.py\n")
    stage.expect_file("data/results.csv", "1,2,3\n")
    stage.expect_file(".gitignore", "*.log\ndata/\n")


def agents_gitignore_never_deletes(stage: Stage) -> None:
    """The same, where the agent itself had written the line."""
    stage.write(".gitignore", "*.log\n")
    stage.start("main.py")
    with stage.turn() as token:
        stage.write(".gitignore", "*.log\ndata/\n")
    stage.write("data/results.csv", "1,2,3\n")
    stage.restore(token)
    stage.expect_file(".gitignore", "*.log\n")
    stage.expect_file("data/results.csv", "1,2,3\n")


def broken_gitignore_deletes_nothing(stage: Stage) -> None:
    """The check for ignored files failed, was taken for "none", and they were deleted."""
    stage.write(".gitignore", "cache/\n")
    stage.start("a")
    token = stage.checkpoint()
    stage.write("cache/data", "precious\n")
    os.remove(stage.root / ".gitignore")
    (stage.root / ".gitignore").symlink_to(".gitignore")
    with stage.agent():
        stage.write("a", "agent\n")
    stage.restore(token)
    stage.expect_files({"a": "a\n", "cache/data": "precious\n"})


def file_ignored_later_is_not_lost(stage: Stage) -> None:
    """A captured file that a later rule ignores was taken for deleted."""
    stage.start("a", "settings.local")
    stage.checkpoint()
    stage.write(".gitignore", "*.local\n")
    with stage.turn() as token:
        os.remove(stage.root / "settings.local")
    stage.driver.restore_all(token)
    stage.expect_file("settings.local", "settings.local\n")


def link_out_of_the_project_is_not_followed(stage: Stage) -> None:
    """A directory became a link to a place outside, and the restore wrote there."""
    outside = stage.folder / "outside"
    outside.mkdir()
    (outside / "file").write_text("outside\n")
    stage.start("sub/file", "a")
    with stage.turn() as token:
        stage.shell("rm -r sub; ln -s ../outside sub; echo x > a")
    stage.restore(token)
    stage.expect((outside / "file").read_text() == "outside\n", "a file outside was written")
    stage.expect_file("sub/file", "sub/file\n")
    stage.expect(not (stage.root / "sub").is_symlink(), "sub is still a link")


def hard_link_to_the_outside_is_not_written_through(stage: Stage) -> None:
    """A file shared with a place outside by a hard link was overwritten there too."""
    stage.start("a")
    token = stage.checkpoint()
    outside = stage.folder / "outside"
    outside.write_text("outside\n")
    with stage.agent():
        os.remove(stage.root / "a")
        os.link(outside, stage.root / "a")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    stage.expect(outside.read_text() == "outside\n", "a file outside was written")


def _letters(stage: Stage) -> str:
    text = "import a\n1\n2\n3\n4\n5\nend\n"
    stage.write("f.py", text)
    stage.start()
    return text


def merge_keeps_what_a_person_wrote_between_two_turns(stage: Stage) -> None:
    """A merge took what was there now for its base, and removed the person's line."""
    text = _letters(stage)
    with stage.turn() as token:
        stage.shell("sed -i s/import/IMPORT/ f.py")
    stage.shell("echo '# mine' >> f.py")
    with stage.agent():
        stage.shell("sed -i s/^3/three/ f.py")
    stage.driver.restore_merging(token)
    stage.expect_file("f.py", text + "# mine\n")


def merge_twice_is_merge_once(stage: Stage) -> None:
    """The second merge to the same point removed the line that the first had kept."""
    text = _letters(stage)
    with stage.turn() as token:
        stage.shell("sed -i s/import/IMPORT/ f.py")
    stage.shell("echo '# mine' >> f.py")
    stage.driver.restore_merging(token)
    stage.driver.restore_merging(token)
    stage.expect_file("f.py", text + "# mine\n")


def undo_of_a_small_restore_leaves_other_files_alone(stage: Stage) -> None:
    """Undoing the restore of one file called another file a conflict, and overwrote it."""
    stage.start("a", "b")
    with stage.turn() as token:
        stage.shell("echo agent >> a; rm b")
    stage.driver.restore_paths(token, ["b"])
    stage.restore(token)
    stage.driver.undo()
    stage.write("a", "a\nagent\nperson\n")
    stage.driver.undo()
    stage.expect_files({"a": "a\nagent\nperson\n", "b": None})
    stage.expect("a" not in stage.driver.report(), "a file that it never touched is reported")


def _work_in_anothers(stage: Stage, other: Driver, path: str) -> None:
    """Another session writes a file within a call of this one, which is taken back."""
    try:
        with stage.turn() as token:
            stage.write("a", "ours\n")
            with other.call("b"):
                stage.write(path, "theirs\n")
        stage.restore(token)
    finally:
        other.stop()
    stage.expect_file("a", "a\n")
    stage.expect_file(path, "theirs\n")


def session_in_a_folder_below_keeps_its_work(stage: Stage) -> None:
    """Two sessions, one in a folder of the other's: undo in the upper took the lower's file."""
    stage.write("pkg/b", "b\n")
    stage.start("a")
    _work_in_anothers(
        stage, stage.driver.another_at(stage.root / "pkg", stage.folder / "below"), "pkg/b"
    )


def two_stores_do_not_take_each_others_work(stage: Stage) -> None:
    """Two programs with stores of their own in one folder: each undid the other's files."""
    stage.start("a", "b")
    _work_in_anothers(stage, stage.driver.another_at(stage.root, stage.folder / "beside"), "b")


def killed_call_of_another_session_blocks_nothing(stage: Stage) -> None:
    """An agent was killed in a command; from then on no session there could take back a file."""
    stage.start("a")
    other = stage.driver.another()
    other.kill_call("true")
    with stage.turn() as token:
        stage.write("a", "agent\n")
    stage.restore(token)
    other.stop()
    stage.expect_file("a", "a\n")


def restore_waits_for_a_call_under_way(stage: Stage) -> None:
    """A restore in the middle of another session's command: half of its work had no author."""
    stage.start("a", "b")
    with stage.neighbour() as other:
        with stage.turn() as token:
            stage.write("a", "first\n")
        with other.call():
            stage.write("b", "second\n")
            before = stage.state()
            with suppress(Refused):
                stage.restore(token)
                stage.expect_file("a", "a\n", "it says that it restored, and did not")
            stage.expect_file("b", "second\n")
        stage.expect(before == stage.state() or stage.read("a") == b"a\n", "half was restored")
        stage.restore(token)
    stage.expect_files({"a": "a\n", "b": "second\n"})


def link_to_another_worktree_is_another_directory(stage: Stage) -> None:
    """The folder was a link; it led to another worktree by then, whose files were deleted."""
    first, second = stage.folder / "worktree-1", stage.folder / "worktree-2"
    for folder in (first, second):
        folder.mkdir()
        (folder / "a").write_text(folder.name)
    (second / "only here").write_text("work\n")
    link = stage.folder / "current"
    link.symlink_to(first)
    stage.driver.start(link)
    with stage.turn() as token:
        (first / "a").write_text("agent\n")
    stage.driver.stop()
    link.unlink()
    link.symlink_to(second)
    before = stage.state(second)
    with suppress(Refused):
        stage.driver.start(link)
        stage.driver.restore_all(token)
    stage.expect(stage.state(second) == before, "the other worktree was changed")


def ignore_rule_of_an_agent_hides_nothing(stage: Stage) -> None:
    """An agent wrote a rule that hid its files from the undo."""
    stage.start("a")
    token = stage.checkpoint()
    before = stage.state()
    with stage.agent():
        for name in (".gitignore", ".backtrailignore"):
            stage.write(name, "hidden/\n*.evil\n")
        stage.write("hidden/tool.sh", "agent\n")
        stage.write("x.evil", "agent\n")
    stage.restore(token)
    stage.expect_state(before)
