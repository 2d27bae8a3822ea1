"""Snapshots of files, and going back."""

from __future__ import annotations

from ..goals import Goal
from ..running import Contender, Kind
from .base import Column, Part, Sizes

GIT, RESTIC, COPY = "git add -A + write-tree", "restic backup", "a plain copy, a plain look"


def trees_part(sizes: Sizes) -> Part:
    def run(name: str, kind: Kind, driver: str, n: int) -> Contender:
        return Contender(f"{name}, {n:,} files", kind, driver, {"task": "trees", "n": n})

    small, large = sizes.tree, sizes.tree_large
    contenders = []
    for n in (small, large):
        contenders += [
            run("Session", "ours", "trees_ours", n),
            run(GIT, "peer", "trees_git", n),
            run(COPY, "limit", "trees_limits", n),
        ]
    contenders.append(run(RESTIC, "peer", "trees_restic", small))

    def named(name: str, n: int = small) -> str:
        return f"{name}, {n:,} files"

    ours, git = named("Session"), (named(GIT),)
    return Part(
        name="trees",
        title="Snapshots of a tree, and going back",
        contenders=tuple(contenders),
        columns=(
            Column("first", "first ms", 0),
            Column("again", "nothing changed ms", 1),
            Column("changed", "10 changed ms", 1),
            Column("back", "back ms", 1),
            Column("stored", "stored MB", 1, span=False),
            Column("growth", "growth KB", 0, span=False),
            Column("per_mb", "first ms per MB", 1, span=False),
            Column("memory", "memory added MB", 0, span=False),
        ),
        goals=(
            Goal("first snapshot", ours, "first", git, at_most=0.3),
            Goal("first snapshot", ours, "first", (named(RESTIC),), at_most=0.6),
            Goal("first, memory in MB", named("Session", large), "memory", at_most=300),
            Goal("nothing changed", ours, "again", git, at_most=1.0),
            Goal("10 files changed", ours, "changed", git, at_most=1.0),
            Goal("rewind of 10 files", ours, "back", git, at_most=1.2),
            Goal("stored", ours, "stored", git, at_most=0.7),
            Goal("growth for 10 files", ours, "growth", git, at_most=1.0),
            Goal("nothing changed, large", named("Session", large), "again",
                 (named(GIT, large),), at_most=1.0),
            Goal("first, ms per MB: large to small", named("Session", large), "per_mb",
                 (ours,), at_most=1.2),
        ),
        note=(
            "Files of published packages. Ours is durable: contents are synced before a message "
            "is acknowledged, restored files before a rewind returns. Git syncs neither. Going "
            "back is `rewind`, and `git reset --hard`. Memory is that of the whole process."
        ),
    )  # fmt: skip


def file_part(sizes: Sizes) -> Part:
    times = sizes.many * 12
    job = {"task": "one_file", "times": times}
    edit, limit = "10 KB before an edit", "10 KB appended + fdatasync"
    index = f"index of {sizes.tree_large:,} files, load + save"
    return Part(
        name="file",
        title="One file before an edit; the index",
        contenders=(
            Contender(edit, "ours", "trees_ours", job),
            Contender(index, "ours", "trees_ours", {"task": "index", "n": sizes.tree_large}),
            Contender(limit, "limit", "trees_limits", job),
        ),
        columns=(Column("ms", "ms"),),
        goals=(
            Goal("one known file", edit, "ms", (limit,), at_most=4.0),
            Goal("index in ms", index, "ms", at_most=50),
        ),
        note=(
            "A bracket is opened: the file is read, hashed, stored and synced. Both wait 1 ms "
            "before each, as no agent edits in a tight loop."
        ),
    )


def many_part(sizes: Sizes) -> Part:
    job = {"task": "many", "n": sizes.copied, "rewound": sizes.rewound}
    ours, git, copy = "Session, many files", "git reset --hard", "cp -a"
    return Part(
        name="many",
        title=f"{sizes.copied:,} files to a new directory; {sizes.rewound:,} and 10 files back",
        contenders=(
            Contender(ours, "ours", "trees_many", {**job, "who": "ours"}),
            Contender(git, "peer", "trees_many", {**job, "who": "git"}),
            Contender(copy, "limit", "trees_many", {**job, "who": "cp"}),
        ),
        columns=(
            Column("copy", "new directory ms", 0),
            Column("many", f"{sizes.rewound:,} files back ms", 0),
            Column("few", "10 files back ms", 1),
        ),
        goals=(
            Goal(f"fork into a directory, {sizes.copied:,} files", ours, "copy", (copy,),
                 at_most=2.5),
            Goal(f"rewind of {sizes.rewound:,} files", ours, "many", (git,), at_most=2.5),
            Goal("rewind of 10 files of these", ours, "few", (git,), at_most=1.2),
        ),
        note=(
            "No tree is removed between rounds: after that, new files are slow for a while. Ours "
            "is on the disk when the call returns, what git and `cp` wrote is not."
        ),
    )  # fmt: skip


def blame_part(sizes: Sizes) -> Part:
    lines, turns = sizes.blamed
    job = {"task": "blame", "lines": lines, "turns": turns}
    ours, git = "session.blame", "git blame"
    return Part(
        name="blame",
        title=f"Who wrote each line of a file of {lines:,}, changed by {turns} turns",
        contenders=(
            Contender(ours, "ours", "lines", {**job, "who": "ours"}),
            Contender(git, "peer", "lines", {**job, "who": "git"}),
        ),
        columns=(Column("ms", "ms", 0),),
        goals=(Goal("blame", ours, "ms", (git,), at_most=5.0),),
        note="The same edits: one turn, or one commit, for each. Git starts a process each time.",
    )
