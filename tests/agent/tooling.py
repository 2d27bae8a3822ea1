"""What the tests of tools share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backtrail.agent.tools import BUILT_IN, Context, check_input
from backtrail.events import Json


def context(
    cwd: Path, *more: Path, cancelled: Callable[[], bool] = lambda: False, timeout: float = 30.0
) -> Context:
    """A context for a workspace."""
    return Context(cwd, (cwd, *more), cancelled, timeout=timeout)


def run(ctx: Context, name: str, **input: Json) -> str:
    """Call a built-in tool as a loop does; its text."""
    tool = BUILT_IN[name]
    result = tool.run(ctx, check_input(tool, input))
    assert isinstance(result, str), result
    return result


def tree(root: Path) -> dict[str, str | bytes]:
    """All that is below a directory: content of files, targets of links."""
    found: dict[str, str | bytes] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = "directory"
    return found
