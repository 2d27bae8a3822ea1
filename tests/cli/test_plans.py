"""A plan as people read it."""

from __future__ import annotations

import pytest

from backtrail.cli.output import Output
from backtrail.cli.plan import LONGEST_LIST, lines_of, listed, show, signed
from backtrail.session.views import FileChange, Rewind


def text_of(result: Rewind, messages: int = 0) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines_of(result, messages)]


def planned(*files: FileChange, applied: bool = False, **more: list[str]) -> Rewind:
    kept = [file for file in files if file.action == "conflict"]
    return Rewind(applied, 4, 0, 2, list(files), kept, more.get("warnings", []))


def test_what_is_uncertain_and_what_cannot_be_undone_is_reported() -> None:
    """Each with its reason; a warning once."""
    lines = text_of(
        planned(
            FileChange("a", "write", "saved by a person in that time, perhaps", 2, 1),
            FileChange("b", "skip", "was not captured: over the limit"),
            FileChange("c", "conflict", "changed since by somebody else", 9, 9),
            warnings=["git had x checked out then, and has y now"] * 2,
        ),
        messages=2,
    )
    assert lines == [
        "files: 1 file to change  +2 −1, 1 conflict",
        "  conflict  c  (changed since by somebody else)",
        "  write     a  +2 −1  (saved by a person in that time, perhaps)",
        "  skip      b  (was not captured: over the limit)",
        "warning: git had x checked out then, and has y now",
        "conversation: unchanged, 2 messages",
    ]


def test_folders_are_counted_as_folders() -> None:
    """Apart from files, and shown with a slash; nothing is a count too."""
    gone = [FileChange("a/b", "delete", "", 0, 1), FileChange("a", "delete", folder=True)]
    lines = text_of(planned(*gone, applied=True))
    assert lines[:3] == ["files: 1 file and 1 folder changed  −1", "  deleted  a/b  −1",
                         "  deleted  a/"]  # fmt: skip
    assert text_of(planned(gone[1]))[0] == "files: 1 folder to change"
    assert text_of(planned(FileChange("c", "conflict")))[0] == (
        "files: nothing to change, 1 conflict"
    )


def test_a_long_list_is_cut_but_never_its_conflicts() -> None:
    """What is not shown is counted."""
    many = [FileChange(f"f{n}", "create", "", 1) for n in range(100)]
    lines = text_of(planned(*many))
    assert len(lines) == LONGEST_LIST + 3
    assert lines[-2] == f"  … and {100 - LONGEST_LIST} more; --json lists all"
    clashes = [FileChange(f"c{n}", "conflict", "why") for n in range(60)]
    lines = text_of(planned(*many, *clashes))
    assert sum("conflict " in line for line in lines) == 60


def test_the_conversation_in_words() -> None:
    """What goes, what comes back, what stays; before and after."""
    assert text_of(Rewind(False, 4, 3, 2), 4) == ["conversation: 3 events to drop, 2 messages left"]
    assert text_of(Rewind(True, 4, 1, 1), 4) == ["conversation: 1 event dropped, 1 message left"]
    assert text_of(Rewind(False, 9, 0, 4), 2) == [
        "conversation: 2 messages to come back, 4 messages"
    ]
    assert text_of(Rewind(True, 9, 0, 4), 3) == ["conversation: 1 message came back, 4 messages"]


def test_hostile_names_stay_text(capsys: pytest.CaptureFixture[str]) -> None:
    """As data and aside."""
    result = planned(FileChange("a\x1b[2J\nb\u202e", "write", "\x07", 1))
    for aside in (False, True):
        show(Output(), lines_of(result, 2), aside=aside)
        said = capsys.readouterr()
        shown = said.err if aside else said.out
        assert "  write  a\\x1b[2J\\nb\\u202e  +1  (\\x07)\n" in shown
        assert not set(shown) & {"\x1b", "\x07", "\u202e"}


def test_names_and_lines_in_a_sentence() -> None:
    """Some names and how many more; lines that are none are not reported."""
    assert listed(["a", "b"], 3) == "a, b"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert (signed(1200, 3), signed(0, 1), signed(0, 0)) == ("+1,200 −3", "−1", "")
