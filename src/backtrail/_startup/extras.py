"""The line that installs what an extra of ours needs, wherever this package came from."""

from __future__ import annotations

import re


def install_line(extra: str) -> str:
    """A command that works though no index has this package: it names what the extra needs.

    So it is never a name that another may register.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        needed = requires("backtrail") or []
    except PackageNotFoundError:
        needed = []
    wanted = re.compile(rf"""extra == ['"]{re.escape(extra)}['"]""")
    found = [line.partition(";")[0].strip() for line in needed if wanted.search(line)]
    if not found:
        return f"pip install '.[{extra}]' in a clone of Backtrail"
    return "pip install " + " ".join(f"'{one}'" for one in found)
