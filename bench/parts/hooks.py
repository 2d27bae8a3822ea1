"""Hooks that agents call: a process for each event."""

from __future__ import annotations

from ..goals import Goal
from ..running import Contender, Kind
from .base import Column, Part, Sizes

GIT = "git add -A && git write-tree"
STATUS = "backtrail status"


def hook_part(sizes: Sizes) -> Part:
    def run(name: str, kind: Kind, task: str, n: int) -> Contender:
        return Contender(f"{name}, {n:,} files", kind, "trees_hook", {"task": task, "n": n})

    def idle(name: str, *, off: bool) -> Contender:
        return Contender(name, "ours", "trees_hook", {"task": "idle", "off": off})

    small, large = sizes.project, sizes.tree_large
    read, off = "backtrail hook, a tool that reads", "backtrail hook, switched off"
    ours, most = f"backtrail hook, {small:,} files", f"backtrail hook, {large:,} files"
    return Part(
        name="hook",
        title="Hooks: what an agent waits for",
        contenders=(
            run("backtrail hook", "ours", "hooks", small),
            run("backtrail hook", "ours", "hooks", large),
            idle(read, off=False),
            idle(off, off=True),
            run(STATUS, "ours", "status", sizes.copied),
            run(GIT, "peer", "git", small),
            run(GIT, "peer", "git", large),
        ),
        columns=(
            Column("before", "before a call ms", 1),
            Column("after", "after it ms", 1),
            Column("changed", "after it, 10 changed ms", 1),
            Column("prompt", "at a prompt ms", 1),
            Column("bare", "bare Python, or `git status`, ms", 1),
            Column("ratio", "against it", 2),
            Column("over", "over bare Python ms", 1),
        ),
        goals=(
            Goal("before a call, against bare Python", ours, "ratio", at_most=6.5),
            Goal(
                "status, against `git status`",
                f"{STATUS}, {sizes.copied:,} files",
                "ratio",
                at_most=4,
            ),
            Goal("before a call, in ms", ours, "before", at_most=150),
            Goal("after a call, nothing changed, in ms", ours, "after", at_most=150),
            Goal("after a call, 10 files changed, in ms", ours, "changed", at_most=200),
            Goal("large project, before a call, in ms", most, "before", at_most=500),
            Goal("large project, 10 files changed, in ms", most, "changed", at_most=500),
            Goal("nothing to do, over bare Python, in ms", read, "over", at_most=70),
            Goal("switched off, over bare Python, in ms", off, "over", at_most=70),
        ),
        note=(
            "Wall time of a whole process, from its start to its end, on a project that is known "
            "already; the call is one of the shell, so that all files are looked at. With ten "
            "files changed, the hook also takes over what is new in the agent's transcript. "
            "Git syncs nothing; the hook does not return before contents are on the disk."
        ),
    )
