"""Disks do not fill, and no call waits: what is stored, and what is left out."""

from __future__ import annotations

import os
import random
import threading
import time

from .driver import Token
from .stage import Stage

_MB = 1 << 20


def _growth(stage: Stage, size: int) -> int:
    return stage.driver.store_size() - size


def huge_file_is_not_stored(stage: Stage) -> None:
    """An untracked file of eleven gigabytes was copied with every snapshot."""
    stage.start("a")
    stage.checkpoint()
    size = stage.driver.store_size()
    content = random.Random(1).randbytes(24 * _MB)
    stage.write("model.bin", content)
    token = stage.checkpoint()
    stage.expect(_growth(stage, size) < 2 * _MB, "a huge file was stored")
    stage.expect("model.bin" in " ".join(stage.driver.warnings()), "it does not say so")
    with stage.agent():
        stage.write("a", "agent\n")
    stage.restore(token)
    stage.expect_files({"model.bin": content, "a": "a\n"})


def file_that_grew_huge_is_left_alone(stage: Stage) -> None:
    """A file that became too large to store was cut, or deleted, by a restore."""
    stage.write("data.bin", "small\n")
    stage.start("a")
    with stage.turn() as token:
        os.truncate(stage.root / "data.bin", 24 * _MB)
        stage.write("a", "agent\n")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    grown = (stage.root / "data.bin").stat().st_size
    back = stage.read("data.bin") == b"small\n"
    said = "data.bin" in " ".join(stage.driver.warnings())
    stage.expect(back or (grown == 24 * _MB and said), "data.bin is neither old nor whole")


def build_output_costs_nothing(stage: Stage) -> None:
    """A gigabyte of build output made every step take minutes, and a copy each."""
    stage.write("Cargo.toml", "[package]\n")
    stage.start("src/main.rs")
    stage.checkpoint()
    size = stage.driver.store_size()
    for number in range(3):
        with stage.agent():
            stage.write("target/debug/app", random.Random(number).randbytes(4 * _MB))
        stage.checkpoint()
    stage.expect(_growth(stage, size) < 2 * _MB, "build output was stored")


def installed_packages_are_not_copied(stage: Stage) -> None:
    """The first use walked through `node_modules`, and timed out."""
    dice = random.Random(2)
    for number in range(300):
        stage.write(f"node_modules/p{number}/index.js", dice.randbytes(8000))
    stage.write(".gitignore", "node_modules\n")
    stage.start("package.json")
    size = stage.driver.store_size()
    stage.checkpoint()
    stage.expect(_growth(stage, size) < _MB, "installed packages were stored")


def packages_that_no_rule_ignores_are_not_copied(stage: Stage) -> None:
    """The same, in a project whose `.gitignore` does not know them."""
    dice = random.Random(3)
    for number in range(300):
        stage.write(f"node_modules/p{number}/index.js", dice.randbytes(8000))
    stage.start("package.json")
    size = stage.driver.store_size()
    stage.checkpoint()
    stage.expect(_growth(stage, size) < _MB, "installed packages were stored")


def checkpoint_without_changes_costs_nothing(stage: Stage) -> None:
    """Most turns change nothing, and each cost as much as one that does."""
    stage.start(*(f"{number}.txt" for number in range(200)))
    stage.checkpoint()
    stage.checkpoint()
    size = stage.driver.store_size()
    for _ in range(20):
        stage.checkpoint()
    stage.expect(_growth(stage, size) < 100_000, f"{_growth(stage, size)} bytes for nothing")


def same_content_is_stored_once(stage: Stage) -> None:
    """A file that was copied and moved about was stored again each time."""
    content = random.Random(4).randbytes(_MB)
    stage.write("0.bin", content)
    stage.start()
    stage.checkpoint()
    size = stage.driver.store_size()
    for number in range(1, 6):
        with stage.agent():
            stage.write(f"{number}.bin", content)
        stage.checkpoint()
    stage.expect(_growth(stage, size) < _MB, "one content was stored several times")


def unchanged_project_does_not_wait(stage: Stage) -> None:
    """Every request to the model waited a minute and a half for a snapshot."""
    for number in range(2000):
        stage.write(f"d{number % 40}/{number}.txt", f"{number}\n")
    stage.start()
    stage.checkpoint()
    stage.checkpoint()
    begun = time.monotonic()
    stage.checkpoint()
    took = time.monotonic() - begun
    stage.expect(took < 2, f"a checkpoint of an unchanged project takes {took:.1f} s")


def store_in_the_project_does_not_store_itself(stage: Stage) -> None:
    """The store lay in the project, and each snapshot held all the earlier ones."""
    stage.driver = stage.tool("project/.state")
    stage.start("a")
    token = stage.checkpoint()
    for text in ("agent\n", "agent again\n"):
        # Some files of a store are made with the first edit.
        size = stage.driver.store_size()
        with stage.agent():
            stage.write("a", text)
        for _ in range(5):
            stage.checkpoint()
    stage.expect(_growth(stage, size) < 200_000, "the store stores itself")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    stage.checkpoint()


def nearly_full_disk_stops_capture_and_says_so(stage: Stage) -> None:
    """Snapshots went on until the disk was full, and then tried again for ever."""
    stage.start("a")
    stage.checkpoint()
    size = stage.driver.store_size()
    with stage.driver.low_disk():
        stage.write("b", random.Random(5).randbytes(_MB))
        stage.checkpoint()
        stage.expect(_growth(stage, size) < _MB // 2, "it stored on a full disk")
        said = " ".join(stage.driver.warnings())
        stage.expect("free" in said, "it does not say that nothing is captured")
    with stage.turn() as token:
        os.remove(stage.root / "b")
    stage.restore(token)
    stage.expect(stage.read("b") is not None, "captures nothing though there is space again")


def store_stays_within_its_budget(stage: Stage) -> None:
    """Snapshots of one project took 262 gigabytes; no limit, no clean-up."""
    dice = random.Random(6)
    with stage.driver.budget(4 * _MB):
        stage.start()
        for _ in range(12):
            with stage.agent():
                stage.write("data", dice.randbytes(_MB))
            stage.checkpoint()
    # What was given up goes in an idle moment, which a busy machine may take long to have.
    deadline = time.monotonic() + 20
    while (size := stage.driver.store_size()) >= 8 * _MB and time.monotonic() < deadline:
        time.sleep(0.1)
    stage.expect(size < 8 * _MB, f"{size >> 20} MB are stored where 4 are allowed")


def _forgotten(stage: Stage) -> Token:
    """A session with twelve megabytes is deleted, another one stays, and all stop."""
    dice = random.Random(7)
    stage.start("a")
    other = stage.driver.another()
    kept = other.checkpoint()
    for _ in range(3):
        with stage.agent():
            stage.write("data", dice.randbytes(4 * _MB))
        stage.checkpoint()
    with stage.agent():
        os.remove(stage.root / "data")
    stage.checkpoint()
    stage.driver.forget()
    other.stop()
    stage.driver = other
    return kept


def deleted_session_gives_its_space_back(stage: Stage) -> None:
    """Sessions were deleted, and what they had stored stayed."""
    kept = _forgotten(stage)
    stage.driver.collect()
    size = stage.driver.store_size()
    stage.expect(size < 3 * _MB, f"{size >> 20} MB are left of a deleted session")
    stage.driver.start(stage.root)
    with stage.agent():
        stage.write("a", "agent\n")
    stage.restore(kept)
    stage.expect_file("a", "a\n")


def collecting_needs_no_second_copy(stage: Stage) -> None:
    """To make space, twice the space was needed; so a full disk stayed full."""
    _forgotten(stage)
    before = peak = stage.driver.store_size()
    work = threading.Thread(target=stage.driver.collect)
    work.start()
    while work.is_alive():
        peak = max(peak, stage.driver.store_size())
        time.sleep(0.001)
    work.join()
    stage.expect(peak < before * 1.75, f"{peak >> 20} MB to clean {before >> 20} MB")


def packages_that_were_only_moved_stay(stage: Stage) -> None:
    """The agent renamed `node_modules`; undo removed it, and what was in it was nowhere."""
    stage.write("node_modules/left-pad/index.js", "pad\n")
    stage.start("a")
    with stage.turn() as token:
        stage.shell("mv node_modules modules_off; echo agent > a")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    found = [stage.read(f"{at}/left-pad/index.js") for at in ("node_modules", "modules_off")]
    stage.expect(b"pad\n" in found, "the packages are gone")


def file_that_grew_too_large_comes_back(stage: Stage) -> None:
    """The agent let a small file grow over the limit; it was skipped, and its text was lost."""
    stage.start("notes")
    token = stage.checkpoint()
    with stage.agent(), (stage.root / "notes").open("wb") as file:
        file.truncate(64 << 20)
    stage.restore(token)
    stage.expect_file("notes", "notes\n")


def file_that_became_a_pipe_comes_back(stage: Stage) -> None:
    """A named pipe was put where a file had been, and the file stayed away."""
    stage.start("notes")
    with stage.turn() as token:
        stage.shell("rm notes; mkfifo notes")
    stage.restore(token)
    stage.expect_file("notes", "notes\n")


def folders_within_folders_stop_nothing(stage: Stage) -> None:
    """Some hundred folders within each other ended the restore, and every one after it."""
    stage.start("a")
    before = stage.state()
    with stage.turn() as token:
        stage.shell("i=0; while [ $i -lt 600 ]; do mkdir d; cd d; i=$((i+1)); done; echo x > f")
    stage.restore(token)
    stage.expect_state(before)
    stage.again()
    with stage.agent():
        stage.write("a", "agent\n")
    stage.restore(token)
    stage.expect_file("a", "a\n")


def folder_made_anew_is_watched_over(stage: Stage) -> None:
    """A project was deleted and cloned again at its place; from then on nothing was kept."""
    stage.start("a")
    stage.checkpoint()
    stage.driver.stop()
    stage.shell(
        "rm -rf ../project/* && rmdir ../project && mkdir ../project && echo b > ../project/b"
    )
    fresh = stage.driver.another()
    try:
        token = fresh.checkpoint()
        with fresh.call():
            stage.write("b", "agent\n")
        fresh.restore(token)
    finally:
        fresh.stop()
    stage.expect_file("b", "b\n")


def left_out_file_that_changed_places_stays(stage: Stage) -> None:
    """The agent swapped an ignored file with a kept one; undo left the ignored one in its store."""
    stage.write(".gitignore", "*.bin\n")
    content = random.Random(8).randbytes(24 * _MB)
    stage.write("model.bin", content)
    stage.start("notes")
    with stage.turn() as token:
        stage.shell("mv notes t; mv model.bin notes; mv t model.bin")
    stage.restore(token)
    stage.expect_file("notes", "notes\n")
    names = [entry.name for entry in stage.root.iterdir() if entry.is_file()]
    stage.expect(content in [stage.read(name) for name in names], "the ignored file is gone")


def package_that_was_moved_out_stays(stage: Stage) -> None:
    """The agent took a package out of `node_modules`; undo removed the only copy."""
    stage.write(".gitignore", "node_modules\n")
    stage.write("node_modules/left-pad/index.js", "patched by hand\n")
    stage.start("a")
    time.sleep(0.05)
    with stage.turn() as token:
        stage.shell("mv node_modules/left-pad left-pad; echo agent > a")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    places = ("left-pad/index.js", "node_modules/left-pad/index.js")
    found = [stage.read(place) for place in places]
    stage.expect(b"patched by hand\n" in found, "the package is gone")
