"""Restores broken on purpose. The sweeps of kills are run on those they must catch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from tests.faults.restore_calls import without_renameat2
from tests.faults.variants import Broken

from backtrail.files.beneath import describe
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.restore import journal
from backtrail.files.restore.plan import Step
from backtrail.files.restore.restore import Restore
from backtrail.files.restore.steps import StepTaker
from backtrail.files.restore.workbench import Workbench


@contextmanager
def keeping_no_journal() -> Iterator[None]:
    """A restore that cannot be finished."""
    with patch.object(Catalogue, "write_journal", lambda *_: None):
        yield


@contextmanager
def writing_in_place() -> Iterator[None]:
    """Files are written over instead of swapped."""
    real = StepTaker._swap

    def swap(self: StepTaker, index: int, parent: int, name: bytes, step: Step) -> Step:
        if step.before is None or {step.before.kind} != {"file"} or step.after is None:
            return real(self, index, parent, name, step)
        if step.after.kind != "file":
            return real(self, index, parent, name, step)
        fd = os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=parent)
        os.write(fd, self._get(step.after.value))
        os.close(fd)
        return step

    with patch.object(StepTaker, "_swap", swap):
        yield


@contextmanager
def without_a_report() -> Iterator[None]:
    """A recovery that finishes the files and not the log."""
    with patch.object(journal, "record", lambda *_: None):
        yield


@contextmanager
def overwriting() -> Iterator[None]:
    """Whatever is at a path is taken for what the plan says."""
    real = StepTaker.take

    def take(self: StepTaker, index: int, step: Step) -> Step:
        there = step.before
        try:
            there = describe(*self._directories.parent(step.path))
        except OSError:
            pass
        return real(self, index, replace(step, before=there))

    with patch.object(StepTaker, "take", take), patch.object(Workbench, "knows", lambda *_: True):
        yield


@contextmanager
def not_settling() -> Iterator[None]:
    """A recovery throws away what made way."""

    def settle(self: Restore, plan: object, name: bytes) -> None:
        self._bench.drop(name)

    with without_renameat2(), patch.object(Restore, "_settle", settle):
        yield


@contextmanager
def leaving_things_behind() -> Iterator[None]:
    """The workbench is not removed."""
    with patch.object(Workbench, "remove", lambda self: None):
        yield


COMPLAINTS: dict[Broken, str] = {
    keeping_no_journal: "left behind|neither before",
    writing_in_place: "neither before|outside was touched",
    without_a_report: "the files are after",
    overwriting: "a person's",
    not_settling: "neither before",
    leaving_things_behind: "left behind",
}
"""Each variant, and what a sweep says of it."""
