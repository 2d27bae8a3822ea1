"""Paths as text and back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.errors import Unsafe
from backtrail.files.names import hidden, inside, meant, shown


@given(st.binary(min_size=1, max_size=20))
def test_every_path_comes_back(path: bytes) -> None:
    """As text that JSON can hold."""
    text = shown(path)
    text.encode("utf-8")
    assert hidden(text) == path


def test_plain_paths_stand_as_they_are() -> None:
    """Only a backslash and bytes that are no UTF-8 are escaped."""
    assert shown("src/größe.py".encode()) == "src/größe.py"
    assert shown(b"a\\b") == "a\\\\b"
    assert shown(b"\xff") == "\\xff"


def test_a_caller_names_paths_from_the_root(tmp_path: Path) -> None:
    """Relative or absolute, also by a link to the root; never outside."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    here = os.fsencode(os.path.realpath(root))
    assert inside(here, "a/b") == b"a/b"
    assert inside(here, "./a/../b") == b"b"
    assert inside(here, root / "a") == b"a"
    assert inside(here, tmp_path / "link" / "a") == b"a"
    assert inside(here, ".") == b""
    for path in ("..", "../x", "/etc/passwd", "a/../../x"):
        with pytest.raises(Unsafe):
            inside(here, path)


@given(st.text(st.sampled_from("\\x41f8g/é\udcff\ud800\0."), max_size=8))
def test_whatever_a_caller_names_is_a_path_or_refused(text: str) -> None:
    """Half an escape, one of a plain letter, a surrogate: never another error."""
    here = b"/nowhere/root"
    with suppress(Unsafe):
        path = meant(here, text, lambda _: False)
        assert b"\0" not in path and b".." not in path.split(b"/")


def test_an_escape_of_a_plain_letter_stands_for_itself() -> None:
    """`shown` writes none, so a person means the backslash."""
    assert meant(b"/r", "\\x41", lambda _: False) == b"\\x41"
    assert meant(b"/r", "\\xff\\\\x", lambda _: False) == b"\xff\\x"
