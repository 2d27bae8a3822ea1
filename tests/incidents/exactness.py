"""What comes back is what was there: bytes, modes, names, links, empty directories."""

from __future__ import annotations

import os

from .stage import Stage


def _round(stage: Stage, undo: str) -> None:
    """Checkpoint, let the agent run a command, restore: all is as it was."""
    stage.start()
    token = stage.checkpoint()
    before = stage.state()
    with stage.agent():
        stage.shell(undo)
    stage.restore(token)
    stage.expect_state(before)


def shell_changes_come_back(stage: Stage) -> None:
    """Only what edit tools touched was remembered; what the shell did was lost."""
    for name in ("a.py", "b.py", "sub/c.py", "sub/deep/d.py"):
        stage.write(name, f"name = '{name}'\n")
    _round(stage, "sed -i s/name/other/ a.py; mv b.py moved.py; rm -r sub; echo new > e.py")


def all_files_gone_come_back(stage: Stage) -> None:
    """The agent ran `rm -rf` on the whole project, hidden files too."""
    for name in ("a", ".hidden", "sub/b", "sub/.c"):
        stage.write(name, name)
    _round(stage, "rm -rf ./* ./.hidden")


def all_of_a_big_change_comes_back(stage: Stage) -> None:
    """A restore after a large refactoring put only a part of the files back."""
    for number in range(120):
        stage.write(f"d{number % 7}/f{number}.txt", f"{number}\n" * number)
    change = "for f in d[0-3]/*; do echo x >> $f; done; rm d4/*; mv d5 e5; cp -r d6 d7; mkdir d8"
    _round(stage, change)


def each_of_many_checkpoints_comes_back(stage: Stage) -> None:
    """State was read from snapshots without the later deltas: wrong versions came back."""
    stage.start("a", "b", "c")
    known = []
    for number in range(9):
        known.append((stage.checkpoint(), stage.state()))
        with stage.agent():
            stage.write("abc"[number % 3], f"{number}\n")
            stage.write(f"new{number}", "new\n")
    for place in (6, 1, 8, 0, 3):
        token, state = known[place]
        stage.driver.restore_all(token)
        stage.expect_state(state, f"checkpoint {place}")


def file_deleted_at_the_checkpoint_stays_deleted(stage: Stage) -> None:
    """What was deleted before the checkpoint, and made again since, stayed after a restore."""
    stage.start("kept", "gone")
    with stage.agent():
        os.remove(stage.root / "gone")
    with stage.turn() as token:
        stage.write("gone", "back again\n")
    stage.restore(token)
    stage.expect_files({"gone": None, "kept": "kept\n"})


def edited_file_is_not_deleted(stage: Stage) -> None:
    """Undo deleted files that the agent had merely edited, and that were not committed."""
    stage.git("init", "-q")
    stage.start("draft.md", "asked-about.md")
    with stage.turn() as token:
        stage.write("draft.md", "better\n")
        stage.read("asked-about.md")
    stage.restore(token)
    stage.expect_files({"draft.md": "draft.md\n", "asked-about.md": "asked-about.md\n"})


def crlf_under_gitattributes(stage: Stage) -> None:
    """Line endings came back as git thinks they should be, not as they were."""
    stage.write(".gitattributes", "* text=auto\n")
    stage.write("windows.txt", b"one\r\ntwo\r\n")
    _round(stage, "echo changed > windows.txt")


def ident_is_not_expanded(stage: Stage) -> None:
    """A keyword in a file came back expanded by git."""
    stage.write(".gitattributes", "*.c ident\n")
    stage.write("a.c", "/* $Id$ */\n")
    _round(stage, "rm a.c")


def mode_600_comes_back(stage: Stage) -> None:
    """A private key came back readable for all."""
    stage.write("key.pem", "secret\n", 0o600)
    stage.write("tool.sh", "#!/bin/sh\n", 0o775)
    _round(stage, "echo other > key.pem; echo other > tool.sh")


def mode_alone_comes_back(stage: Stage) -> None:
    """A changed mode, with the content as it was, went unseen."""
    stage.write("key.pem", "secret\n", 0o600)
    _round(stage, "chmod 644 key.pem")


def mode_of_a_directory_comes_back(stage: Stage) -> None:
    """A private directory was open to all after a restore."""
    stage.write("private/key", "secret\n")
    (stage.root / "private").chmod(0o700)
    _round(stage, "rm -r private")


def all_twelve_bits_of_a_mode_come_back(stage: Stage) -> None:
    """A program lost the bit that lets it run as its owner."""
    stage.write("run", "#!/bin/sh\n", 0o4755)
    stage.write("shared/file", "x")
    (stage.root / "shared").chmod(0o2775)
    _round(stage, "chmod 755 run; rm -r shared")


def read_only_directory_comes_back(stage: Stage) -> None:
    """A restore failed in a directory that cannot be written in, or left it open."""
    stage.write("fixed/file", "fixed\n", 0o444)
    (stage.root / "fixed").chmod(0o555)
    _round(stage, "chmod 755 fixed; rm -f fixed/file; echo x > fixed/new")


def empty_directory_comes_back(stage: Stage) -> None:
    """Empty directories were lost, and the program that needs them failed."""
    (stage.root / "logs" / "today").mkdir(parents=True)
    _round(stage, "rm -r logs")


def new_empty_directory_goes(stage: Stage) -> None:
    """Directories the agent made stayed after their files were gone."""
    stage.write("a", "a")
    _round(stage, "mkdir -p made/deep; echo x > made/deep/file")


def dangling_link_comes_back(stage: Stage) -> None:
    """A link whose target is not there was dropped, or followed."""
    (stage.root / "link").symlink_to("nowhere")
    _round(stage, "rm link")


def link_changed_to_a_file_comes_back(stage: Stage) -> None:
    """A link that became a file was written through, or stayed one."""
    stage.write("real", "real\n")
    (stage.root / "link").symlink_to("real")
    _round(stage, "rm link; echo file > link")


def file_and_directory_change_places(stage: Stage) -> None:
    """A file where a directory was, and the reverse, stopped the restore half-way."""
    stage.write("file", "file\n")
    stage.write("directory/inner", "inner\n")
    _round(stage, "rm -r file directory; mkdir file; echo x > file/y; echo z > directory")


def name_that_is_not_utf8(stage: Stage) -> None:
    """A name in another encoding was garbled, quoted, or stopped everything."""
    path = os.path.join(os.fsencode(stage.root), b"caf\xe9 \n\"'.txt")
    with open(path, "wb") as file:
        file.write(b"content")
    _round(stage, "rm caf*")


def hard_linked_file_comes_back(stage: Stage) -> None:
    """Both names of a file must have its content again."""
    stage.write("a", "shared\n")
    os.link(stage.root / "a", stage.root / "b")
    _round(stage, "echo other > a")


def pipe_stops_nothing(stage: Stage) -> None:
    """A named pipe in the project blocked the capture, or was removed by the restore."""
    stage.write("a", "a")
    os.mkfifo(stage.root / "pipe")
    _round(stage, "echo x > a")


def ignored_file_comes_back(stage: Stage) -> None:
    """The agent overwrote `.env` and removed the local database: git ignores both."""
    stage.write(".gitignore", ".env\n*.db\n")
    stage.write(".env", "TOKEN=1\n", 0o600)
    stage.write("data/dev.db", bytes(range(256)))
    _round(stage, "echo TOKEN= > .env; rm -r data")


def works_outside_git(stage: Stage) -> None:
    """There were no checkpoints in a project without a repository, and nothing said so."""
    stage.write("notes.txt", "notes\n")
    _round(stage, "echo x > notes.txt; echo y > more.txt")


def unchanged_files_keep_their_times(stage: Stage) -> None:
    """A restore wrote every file again, and the next build compiled everything."""
    stage.start("a", "b", "sub/c")
    token = stage.checkpoint()
    before = {name: os.stat(stage.root / name) for name in ("b", "sub/c")}
    with stage.agent():
        stage.write("a", "changed\n")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    for name, then in before.items():
        now = os.stat(stage.root / name)
        same = (now.st_mtime_ns, now.st_ino) == (then.st_mtime_ns, then.st_ino)
        stage.expect(same, f"{name} was written again")
