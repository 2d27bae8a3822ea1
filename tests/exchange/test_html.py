"""The exported page: complete in itself, and nothing in it is obeyed."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from backtrail import Session, Store
from backtrail.exchange.export.html_assets import SCRIPT, STYLE
from backtrail.exchange.exporting import export_html
from backtrail.files.depot import Depot
from backtrail.formats.secrets import Masking
from backtrail.stores import open_store

from .sessions import KEY, PIXEL, golden, harmful

GOLDEN = Path(__file__).parent / "golden" / "session.html"
VOID = {"meta", "input", "img", "br"}
TAGS = VOID | {
    *("html", "head", "title", "style", "body", "header", "main", "footer", "section", "article"),
    *(
        "div",
        "details",
        "summary",
        "pre",
        "code",
        "span",
        "p",
        "dl",
        "dt",
        "dd",
        "h1",
        "h2",
        "h3",
        "time",
    ),
    *("a", "button", "output", "script"),
}
ATTRIBUTES = {
    *("class", "id", "href", "src", "alt", "content", "charset", "name", "http-equiv", "lang"),
    *("datetime", "hidden", "type", "placeholder", "aria-label", "autocomplete"),
}


class Reading(HTMLParser):
    """Reads a page as a browser would, and notes its elements and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self.open[-1] if self.open else "", []).append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")

    def texts(self, tag: str) -> str:
        """All text right inside elements of a tag."""
        return "".join(self.text.get(tag, ()))


def check(page: str) -> Reading:
    """What must hold for every page."""
    read = Reading(page)
    assert {tag for tag, _ in read.elements} <= TAGS
    ids = [given["id"] for _, given in read.elements if "id" in given]
    assert len(ids) == len(set(ids))
    for tag, given in read.elements:
        assert set(given) <= ATTRIBUTES, (tag, given)
        href, src = given.get("href"), given.get("src")
        assert href is None or (href.startswith("#") and href[1:] in ids)
        assert src is None or re.fullmatch(r"data:image/(png|jpeg|gif|webp);base64,[\w+/=]+", src)
    assert [tag for tag, _ in read.elements].count("script") == 1
    assert (read.texts("script"), read.texts("style")) == (SCRIPT, STYLE)
    assert not re.search(r"url\(|@import|https?:|//", STYLE)
    # Nothing that a screen or an editor obeys, not even as text.
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f]", page
    )
    return read


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


def page_of(store: Store, session_id: str, masking: Masking | None = None) -> str:
    with Session.resume(store, session_id, files=False) as session:
        return export_html(session, masking=masking)


def made(store: Store) -> str:
    depot = Depot.of(store)
    session_id = golden(store, depot)
    depot.close()
    return page_of(store, session_id)


def test_the_golden_page(store: Store) -> None:
    """Byte for byte; set UPDATE_GOLDEN to write it anew, and read the difference."""
    page = made(store)
    check(page)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(page, encoding="utf-8")
    assert page == GOLDEN.read_text(encoding="utf-8")


def test_what_is_in_it(store: Store) -> None:
    """Words, code, thoughts, calls with results, subagents, diffs, pictures, notes."""
    page = made(store)
    read = check(page)
    words = read.texts("div")
    assert "Fix `app.py`, please." in words
    assert "It is a **pixel** < 2." in words
    assert "One edit will do." in words
    assert "export KEY=[REDACTED:anthropic-key]" in read.texts("pre")
    assert (KEY in page, "1 secret was masked" in page) == (False, True)
    assert "There is a pixel." in words
    assert "failed: too slow" in words
    assert "Subagent: Look around" in read.texts("summary")
    assert "the turn ended: max_turns (20 turns)" in words
    assert "undone, 1 event left behind" in words
    assert "Never mind." not in words
    assert "taken back and are not shown: 1." in read.texts("p")
    assert "not captured: the disk is full" in read.texts("p")
    spans = [text for text in read.text["span"] if text.startswith(("+", "-"))]
    assert "+print('two')" in spans
    assert "-print('one')" in spans
    assert [given["src"] for tag, given in read.elements if tag == "img"] == [
        f"data:image/png;base64,{PIXEL}"
    ]


def test_every_message_can_be_linked_to(store: Store) -> None:
    """Also the results of calls, which stand inside them."""
    read = check(made(store))
    ids = {given["id"] for _, given in read.elements if "id" in given}
    assert {"e2", "e3", "e4", "e5", "e7", "e8", "e9", "e10", "e12", "s-a1-2"} <= ids
    links = {given["href"] for _, given in read.elements if "href" in given}
    assert {"#e3", "#e5"} <= links


def test_tools_and_thoughts_are_folded(store: Store) -> None:
    """One sees the conversation first."""
    read = check(made(store))
    details = [given for tag, given in read.elements if tag == "details"]
    assert len(details) >= 8
    assert not any("open" in given for given in details)


def test_the_policy_lets_nothing_in(store: Store) -> None:
    """Only the page's own script runs, named by its digest; nothing is loaded."""
    read = check(made(store))
    (policy,) = (
        given["content"]
        for tag, given in read.elements
        if given.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(read.texts("script").encode()).digest()).decode()
    assert policy is not None
    assert policy.split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        f"script-src 'sha256-{digest}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    # The policy must come before anything that it is to rule.
    page = made_again(store)
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script>")


def made_again(store: Store) -> str:
    return page_of(store, "golden")


def test_it_follows_the_colours_of_the_system(store: Store) -> None:
    """Dark where the reader's screen is."""
    assert "prefers-color-scheme:dark" in made(store)


def test_nothing_in_it_is_obeyed(store: Store) -> None:
    """HTML, scripts, styles, links, pictures elsewhere, escape sequences, turned text."""
    page = page_of(store, harmful(store))
    read = check(page)
    assert len(page) < 30_000_000
    assert "40,000 more characters left out" in page
    assert "<script>alert(1)</script>" in read.texts("div")
    assert [tag for tag, _ in read.elements].count("img") == 0
    assert "⟨U+202E⟩gnp.exe" in page


def test_secrets_stay_where_that_is_asked_for(store: Store) -> None:
    """And nothing is said to be masked."""
    depot = Depot.of(store)
    session_id = golden(store, depot)
    depot.close()
    page = page_of(store, session_id, Masking(on=False))
    assert KEY in page
    assert "masked" not in page


def test_secrets_in_files_are_masked_too(tmp_path: Path, store: Store) -> None:
    """A diff shows what is in files."""
    project = tmp_path / "project"
    project.mkdir()
    with Session.create(store, "s", cwd=project) as session:
        session.append({"role": "user", "content": "go"})
        with session.tool("write"):
            (project / ".env").write_text(f"TOKEN={KEY}\nNAME=x\n")
        masking = Masking()
        page = export_html(session, masking=masking)
    assert KEY not in page
    assert "+TOKEN=[REDACTED:anthropic-key]" in check(page).texts("span")
    assert masking.count == 1


def test_an_empty_session(store: Store) -> None:
    """Is a page too."""
    with Session.create(store, "s") as session:
        check(export_html(session))


def test_links_lead_somewhere(tmp_path: Path, store: Store) -> None:
    """Two results in one message, changes by others, pictures as results, parts of a turn."""
    project = tmp_path / "project"
    project.mkdir()
    image = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    with Session.create(store, "s", cwd=project) as session:
        with session.turn("go"):
            (project / "a.txt").write_text("one\n")
        calls = [{"type": "tool_use", "id": f"t{n}", "name": "look", "input": {}} for n in (1, 2)]
        session.append({"role": "assistant", "content": calls})
        results = [
            {"type": "tool_result", "tool_use_id": f"t{n}", "content": [_block]}
            for n, _block in ((1, {"type": "image", "source": image}), (2, {"type": "text"}))
        ]
        (project / "a.txt").write_text("two\n")
        session.append({"role": "user", "content": results})
        (project / "a.txt").write_text("three\n")
        session.append({"role": "user", "content": "on"})
        read = check(export_html(session))
    links = [given["href"] for tag, given in read.elements if tag == "a"]
    assert len(links) == len([tag for tag, _ in read.elements if tag == "article"]) + 1
    summaries = read.texts("summary")
    # In all, the turn added the file; what others did to it stands for itself.
    assert (summaries.count("added"), summaries.count("modified")) == (1, 1)
    assert "others" in summaries


def test_a_turn_shows_each_call_once_and_its_files_in_all(tmp_path: Path, store: Store) -> None:
    """A call that a checkpoint cut in two is one; of a rewind, what it did is not listed."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("0\n")
    note = "<task-notification>\n<status>completed</status>\n</task-notification>"
    with Session.create(store, "s", cwd=project) as session:
        session.append({"role": "user", "content": "go"})
        session.append({"role": "system", "content": note})
        with session.tool("bash", {"command": "make"}) as call:
            (project / "a.txt").write_text("1\n")
            session.checkpoint()
            (project / "a.txt").write_text("2\n")
            call.result = "made"
        point = session.append({"role": "assistant", "content": "Done."})
        with session.tool("bash", {"command": "make again"}):
            (project / "a.txt").write_text("3\n")
        session.rewind(point, scope="files")
        page = export_html(session)
    read = check(page)
    summaries = [" ".join(text.split()) for text in read.texts("summary").split("\n")]
    assert page.count('<details class="call">') == 2
    assert page.count('<pre class="diff">') == 1
    assert "+2" in read.texts("span") and "+3" not in read.texts("span")
    assert "Task notification" in " ".join(summaries)
    assert "System prompt" not in page
    assert "in 1 turn<" in page
    assert re.search(r'<time datetime="\d{4}-\d\d-\d\dT[^"]+Z">', page)
