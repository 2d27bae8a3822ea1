"""Where a user's files belong: settings, data and state, as the platform has it.

On Linux that is three variables with three defaults; elsewhere `platformdirs` knows. A hook
pays for every import, and that one costs as much as opening a store.
"""

from __future__ import annotations

import os
import sys
from typing import Literal

_LINUX = {
    "config": ("XDG_CONFIG_HOME", "~/.config"),
    "data": ("XDG_DATA_HOME", "~/.local/share"),
    "state": ("XDG_STATE_HOME", "~/.local/state"),
}


def user_folder(kind: Literal["config", "data", "state"]) -> str:
    """The folder for our files of a kind; it need not be there."""
    if sys.platform != "linux":
        return known_folder(kind)
    variable, usual = _LINUX[kind]
    given = os.environ.get(variable, "").strip()
    return f"{given or os.path.expanduser(usual)}/backtrail"  # noqa: PTH111 - Path is heavier


def state_folder() -> str:
    """What this machine knows: `BACKTRAIL_STATE`, else the user's state folder."""
    given = os.environ.get("BACKTRAIL_STATE", "").strip()
    return os.path.abspath(given) if given else user_folder("state")  # noqa: PTH100 - as above


def known_folder(kind: Literal["config", "data", "state"]) -> str:
    """The same, as `platformdirs` has them."""
    import platformdirs

    ask = {
        "config": platformdirs.user_config_dir,
        "data": platformdirs.user_data_dir,
        "state": platformdirs.user_state_dir,
    }[kind]
    return ask("backtrail", appauthor=False)
