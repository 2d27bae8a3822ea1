"""Killed, damaged, or several at once: the project is whole, and the next use goes on."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress

from .driver import Driver, Refused, Token
from .stage import Stage

_FILES = ("a", "b", "sub/c", "sub/d")


def _changed(stage: Stage) -> Token:
    """A checkpoint, and then all kinds of changes by the agent."""
    stage.start(*_FILES)
    with stage.turn() as token:
        stage.shell("echo x > a; rm b; mv sub/c c; echo new > sub/new; chmod 600 sub/d; ln -s a l")
    return token


def killed_in_the_middle_of_a_restore(stage: Stage) -> None:
    """A restore that was killed left a project that was neither old nor new."""
    token = _changed(stage)
    before = stage.state()
    for step in (1, 6, 12, 20):
        if not stage.driver.kill_restore(token, step):
            break
        # The next use of the tool finishes what was cut short, or takes it back.
        stage.checkpoint()
        done = stage.state().get("b") is not None
        if done:
            stage.expect(stage.state().keys() == {*_FILES, "sub"}, "half of the restore is done")
            stage.driver.undo()
        stage.expect_state(before, f"killed at step {step}")


def killed_restore_then_retry_keeps_the_original(stage: Stage) -> None:
    """A failed undo was tried again, and took the half-restored files for the original."""
    token = _changed(stage)
    before = stage.state()
    stage.driver.kill_restore(token, 12)
    stage.restore(token)
    stage.expect_files({"b": "b\n", "sub/c": "sub/c\n"})
    stage.driver.undo()
    stage.expect_state(before, "the state before the first restore is lost")


def person_repairs_after_a_killed_restore(stage: Stage) -> None:
    """What a person mended by hand after a crash was overwritten by the recovery."""
    token = _changed(stage)
    stage.driver.stop()
    stage.driver.start(stage.root)
    stage.driver.kill_restore(token, 0)
    stage.write("a", "mended by hand\n")
    with suppress(Refused):
        stage.checkpoint()
        stage.restore(token)
    stage.expect_file("a", "mended by hand\n")


def killed_restore_leaves_nothing_around(stage: Stage) -> None:
    """Temporary files of a killed restore lay in the project for ever."""
    token = _changed(stage)
    stage.driver.kill_restore(token, 3)
    stage.driver.restore_all(token)
    names = {name for name in os.listdir(stage.root) if name != ".git"}
    stage.expect(names == {"a", "b", "sub"}, f"there are {sorted(names)}")


def killed_checkpoint_leaves_no_stale_lock(stage: Stage) -> None:
    """A snapshot was killed; its lock stayed, and there were no more snapshots."""
    stage.start("a")
    stage.checkpoint()
    stage.write("big", random.Random(1).randbytes(16 << 20))
    stage.driver.kill_checkpoint()
    with stage.turn() as token:
        stage.write("a", "agent\n")
    stage.restore(token)
    stage.expect_file("a", "a\n")


def killed_checkpoints_do_not_pile_up(stage: Stage) -> None:
    """Leftovers of killed work, never removed, filled half a terabyte."""
    stage.start("a")
    stage.checkpoint()
    size = stage.driver.store_size()
    for number in range(2):
        stage.write("big", random.Random(number).randbytes(6 << 20))
        stage.driver.kill_checkpoint()
    os.remove(stage.root / "big")
    stage.checkpoint()
    stage.driver.collect()
    stage.driver.stop()
    left = stage.driver.store_size() - size
    stage.expect(left < 4 << 20, f"{left >> 20} MB are left of killed checkpoints")


def sessions_at_once_do_not_wedge_each_other(stage: Stage) -> None:
    """Sessions took snapshots at once: most failed on each other's lock."""
    for number in range(300):
        stage.write(f"{number}.txt", f"{number}\n")
    stage.start()
    drivers = [stage.driver]
    while len(drivers) < 4:
        drivers.append(drivers[-1].another())
    failures: list[BaseException] = []
    for turn in range(3):
        for number in range(300):
            stage.write(f"{number}.txt", f"{number} {turn}\n")
        gate = threading.Barrier(len(drivers))
        workers = [threading.Thread(target=_take, args=(d, gate, failures)) for d in drivers]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for driver in drivers[1:]:
        driver.stop()
    stage.expect(not failures, f"{len(failures)} of 12 checkpoints failed: {failures[:1]}")


def _take(driver: Driver, gate: threading.Barrier, failures: list[BaseException]) -> None:
    gate.wait()
    try:
        driver.checkpoint()
    except Exception as error:
        failures.append(error)


def lost_content_refuses_the_whole_restore(stage: Stage) -> None:
    """A content was missing from the store; files were deleted before that was noticed."""
    stage.start("a", "b", "c")
    with stage.turn() as token:
        stage.shell("echo x > a; echo x > b; rm c; echo x > d")
    before = stage.state()
    stage.driver.stop()
    stage.driver.lose(b"b\n")
    stage.driver.start(stage.root)
    with suppress(Exception):
        stage.restore(token)
    stage.expect_state(before, "half of it was restored")


def zeroed_state_file_stops_nothing(stage: Stage) -> None:
    """After a power cut one small file was all zeros, and there were no more checkpoints."""
    stage.start("a")
    token = stage.checkpoint()
    stage.driver.stop()
    path = stage.driver.state_file()
    path.write_bytes(bytes(path.stat().st_size))
    stage.driver.start(stage.root)
    with stage.agent():
        stage.write("a", "agent\n")
    stage.restore(token)
    stage.expect_file("a", "a\n")


def agent_killed_in_a_call_can_be_undone(stage: Stage) -> None:
    """The agent died in the middle of a command; what that had done had no author."""
    stage.start("a", "b")
    token = stage.checkpoint()
    stage.driver.kill_call("echo x > a; rm b; echo new > c")
    stage.checkpoint()
    stage.restore(token)
    stage.expect_files({"a": "a\n", "b": "b\n", "c": None})
