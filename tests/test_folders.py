"""Where a user's files belong."""

from __future__ import annotations

from typing import Literal

import pytest

from backtrail._startup.folders import known_folder, user_folder

Kind = Literal["config", "data", "state"]


@pytest.mark.parametrize("kind", ["config", "data", "state"])
@pytest.mark.parametrize("given", [None, "", "/some/where"])
def test_the_short_way_leads_to_the_same_place(
    kind: Kind, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known by heart is what `platformdirs` says."""
    variable = f"XDG_{kind.upper()}_HOME"
    if given is None:
        monkeypatch.delenv(variable, raising=False)
    else:
        monkeypatch.setenv(variable, given)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert user_folder(kind) == known_folder(kind)
    # As on a platform that is not known by heart.
    monkeypatch.setattr("sys.platform", "darwin")
    assert user_folder(kind).endswith("backtrail")
