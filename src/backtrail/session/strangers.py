"""Sessions that came from elsewhere: their files go only where a person lets them."""

from __future__ import annotations

from ..errors import Unsafe
from ..events import SessionInfo
from ..files.control import is_bare
from ..files.names import shown
from ..files.restore.plan import Plan, Step
from ..files.trees import Get, Present
from ..settings.allowance import ORIGIN, is_allowed

RUNS = ".envrc, .mcp.json, .claude/settings.json and the like run by themselves"


class NotAllowed(Unsafe):
    """A stranger's files would go into a folder that the person has not allowed."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"{reason}. Nothing was changed: allow the folder once (`--allow`, "
            "`backtrail config allow`), or take them into a new one (`fork --into DIR`)"
        )
        self.folder = folder
        self.reason = reason


def refusal(info: SessionInfo, root: str) -> str | None:
    """Why the files of a session may not go into a folder yet; None if they may."""
    origin = info.metadata.get(ORIGIN)
    if origin is None or is_allowed(root):
        return None
    return (
        f"session `{info.id}` came from a {origin}, and {root} is not allowed to take its files "
        f"yet: {RUNS}"
    )


def check(info: SessionInfo, root: str, plan: Plan, get: Get) -> None:
    """`Unsafe` where a plan would put a stranger's files where nobody allowed them."""
    if plan.acts and info.metadata.get(ORIGIN) is not None:
        check_folder(info, root)
        _refuse_bare(get, plan)


def check_folder(info: SessionInfo, root: str) -> None:
    """`NotAllowed` where the files of a session may not go into a folder."""
    reason = refusal(info, root)
    if reason is not None:
        raise NotAllowed(root, reason)


def _refuse_bare(get: Get, plan: Plan) -> None:
    """`Unsafe` where a plan makes a directory that git takes for a bare repository."""
    folders: dict[bytes, list[Step]] = {}
    for step in plan.steps:
        folders.setdefault(step.path.rpartition(b"/")[0], []).append(step)
    there = Present(get, plan.now)
    for path, steps in folders.items():
        folder = there.at(path)
        before = {*there.names(folder)} if folder and folder.kind == "directory" else set()
        after = before - {_name(s) for s in steps if s.acts and s.after is None}
        after |= {_name(step) for step in steps if step.acts and step.after is not None}
        if is_bare(after) and not is_bare(before):
            raise Unsafe(
                f"{shown(path) or 'the root'} would become a bare repository, whose settings git "
                "obeys: nothing was changed"
            )


def _name(step: Step) -> bytes:
    return step.path.rpartition(b"/")[2]
