"""The keywords that all ways to begin a session share: which there are, and what they may be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from backtrail import (
    AsyncSession,
    Conflict,
    InvalidData,
    NewEvent,
    Session,
    SessionInfo,
    Unsupported,
    arun,
    run,
)
from backtrail.events import Json
from backtrail.stores import open_store

from .talking import user

ODD: list[tuple[str, Json]] = [
    ("agent", 5),
    ("can_use_tool", "yes"),
    ("cwd", b"x"),
    ("cwd", 5),
    ("files", "zzz"),
    ("hooks", [1]),
    ("key", 5),
    ("lease", "always"),
    ("messages", "hi"),
    ("messages", None),
    ("metadata", [("a", 1)]),
    ("on_error", "Raise"),
    ("persist", "no"),
    ("progress", True),
    ("system_prompt", 5),
    ("tags", "one"),
    ("title", 5),
    ("wait", "x"),
    ("wait", float("nan")),
]


def verbs(url: str) -> dict[str, Callable[..., object]]:
    """Everything that takes the keywords of a session."""
    with Session.open(url, "there") as s:
        s.append(user("hi"))

    def fork(**options: Json) -> object:
        with Session.resume(url, "there") as s:
            return s.fork(**options)

    return {
        "create": lambda **options: Session.create(url, **options),
        "open": lambda **options: Session.open(url, **options),
        "resume": lambda **options: Session.resume(url, "there", **options),
        "latest": lambda **options: Session.latest(url, **options),
        "run": lambda **options: run("hi", store=url, **options),
        "fork": fork,
    }


def test_an_unknown_keyword_is_an_error(url: str) -> None:
    """A word spelt wrong does not leave something behind that was not wanted."""
    for verb, call in verbs(url).items():
        with pytest.raises(TypeError, match=rf"^{verb}\(\) got an unexpected .*'persit'"):
            call(persit=False)
    with open_store(url) as store:
        assert [info.id for info in store.sessions()] == ["there"]


@pytest.mark.parametrize(("name", "value"), ODD, ids=[f"{n}-{v!r}" for n, v in ODD])
def test_a_value_that_makes_no_sense_is_an_error(name: str, value: Json) -> None:
    """It is refused at once, by every verb, and not when it is first used."""
    for call in verbs(f"memory:odd-{name}-{value!r}").values():
        with pytest.raises(InvalidData):
            call(**{name: value})


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_asynchronous_verbs_check_them_too(anyio_backend: str) -> None:
    """The same errors, with their own names."""
    options: dict[str, Json] = {"zzz": 1}
    async with await AsyncSession.create("memory:", "s") as s:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: AsyncSession.create("memory:", **options),
            "open": lambda: AsyncSession.open("memory:", **options),
            "resume": lambda: AsyncSession.resume("memory:", "s", **options),
            "latest": lambda: AsyncSession.latest("memory:", **options),
            "fork": lambda: s.fork(**options),
            "arun": lambda: arun("hi", **options),
        }
        for verb, call in calls.items():
            with pytest.raises(TypeError, match=rf"^{verb}\(\) got an unexpected .*'zzz'"):
                await call()
        with pytest.raises(InvalidData):
            await s.fork(on_error="Raise")  # type: ignore[arg-type]


def test_a_fork_is_kept_where_its_session_is(url: str) -> None:
    """It cannot leave nothing behind, and does not pretend to."""
    with Session.create(url, "s") as s, pytest.raises(InvalidData, match="persist"):
        s.fork(persist=False)


WRONG: list[tuple[dict[str, Json], str]] = [
    ({"agent": "no agent at all"}, "no agent at all"),
    ({"agent": "nowhere:model"}, "nowhere"),
    ({"provider": "nowhere"}, "nowhere"),
    ({"agent": "scripted:", "phase": "acept_edits"}, "acept_edits"),
    ({"phase": "acept_edits"}, "acept_edits"),
    ({"agent": "scripted:", "tools": ["reed"]}, "reed"),
    ({"tools": ["reed"]}, "reed"),
    ({"agent": "scripted:", "hooks": {"on_tooth": print}}, "on_tooth"),
    ({"agent": "scripted:", "agent_options": {"windw": 1}}, "windw"),
    ({"agent": lambda turn: [], "phase": "plan"}, "`phase`: .* a callable brings its own"),
    ({"agent": lambda turn: [], "tools": "all"}, "`tools`"),
    ({"agent": lambda turn: [], "can_use_tool": lambda *_: False}, "`can_use_tool`"),
]


@pytest.mark.parametrize(("options", "word"), WRONG, ids=[f"{word}-{len(o)}" for o, word in WRONG])
def test_an_agent_that_cannot_be_is_told_at_once(
    options: dict[str, Json], word: str, tmp_path: Path
) -> None:
    """By every verb, before anything is made, and not by the first `send`."""
    new = tmp_path / "new.db"
    for call in (Session.create, Session.open):
        with pytest.raises((InvalidData, Unsupported), match=word):
            call(f"sqlite:///{new}", **options)
    assert not new.exists()
    place = f"sqlite:///{tmp_path}/there.db"
    for name, verb in verbs(place).items():
        with pytest.raises((InvalidData, Unsupported), match=word):
            verb(**options)
        with open_store(place) as store:
            assert [info.id for info in store.sessions()] == ["there"], name


def test_what_may_come_later_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the environment lacks is asked for by the first `send`, not for reading."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Session.open("memory:", agent="openai:gpt-5", phase="plan") as s:
        assert s.messages() == []
        with pytest.raises(Unsupported, match="OPENAI_API_KEY"):
            s.send("hi")


def test_a_fork_has_the_agent_with_what_it_is_made_of() -> None:
    """Whether or not its parent has sent anything yet; another provider is another agent."""
    given: Json = {"replies": [{"role": "assistant", "content": "hello"}]}
    with (
        Session.create("memory:", agent="scripted:", agent_options=given) as s,
        s.fork() as fork,
        s.fork(provider="scripted") as other,
    ):
        assert fork.send("hi").text == "hello"
        with pytest.raises(Conflict, match="there are 0"):
            other.send("hi")


# --- refused means that nothing was made --------------------------------------------------

REFUSED: list[dict[str, Json]] = [
    {"system_prompt": "\ud800"},
    {"messages": [user("\ud800")]},
    {"messages": [{"role": "user", "content": float("nan")}]},
    {"messages": [{"role": "user", "content": {1, 2}}]},
    {"metadata": {"a": float("nan")}},
    {"key": "\ud800"},
    {"tags": [""]},
]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_a_session_that_is_refused_is_not_there(url: str, options: dict[str, Json]) -> None:
    """So the next try, with something that can be stored, works."""
    with open_store(url) as store:
        with pytest.raises((InvalidData, ValueError)):
            Session.create(store, "s", **options)
        assert store.sessions() == []
        Session.create(store, "s").close()


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_what_is_refused_when_resuming_changes_nothing(url: str, options: dict[str, Json]) -> None:
    """Neither the record nor the log, nor what is appended next."""
    with open_store(url) as store:
        with Session.create(store, "s", title="old") as s:
            s.append(user("hi"))
        before = store.info("s")
        with pytest.raises((InvalidData, ValueError)):
            Session.resume(store, "s", **{"title": "new", **options})
        assert store.info("s") == before
        with Session.resume(store, "s") as s:
            s.append(user("more"))


def test_another_history_changes_nothing(url: str) -> None:
    """`messages` that do not fit are reported before the record is changed."""
    with Session.create(url, "s", title="old") as s:
        s.append(user("hi"))
        with pytest.raises(Conflict, match="another history"):
            Session.resume(s.store, "s", title="new", messages=[user("ho")])
        assert s.info().title == "old"


@pytest.mark.parametrize("metadata", [5, [1], "ab", None], ids=repr)
def test_metadata_is_a_mapping_on_every_store(url: str, metadata: Json) -> None:
    """A record that could not be read again is not written."""
    with open_store(url) as store:
        with pytest.raises(InvalidData, match="metadata"):
            store.create(SessionInfo(id="s", metadata=metadata))
        store.create(SessionInfo(id="s"))
        store.append("s", [NewEvent("k")])
        assert store.info("s").metadata == {}


@pytest.mark.parametrize(
    "options",
    [*REFUSED, {"session_id": "s"}, {"session_id": "../x"}, {"key": "taken"}, {"title": 5}],
    ids=str,
)
def test_a_fork_that_is_refused_leaves_no_folder(
    url: str, tmp_path: Path, options: dict[str, Json]
) -> None:
    """So the next try may write to it."""
    work, into = tmp_path / "work", tmp_path / "into"
    work.mkdir()
    (work / "f").write_text("0")
    with Session.create(url, "s", cwd=work, key="taken") as s:
        point = s.append(user("hi"))
        with pytest.raises((ValueError, OSError, LookupError)):
            s.fork(point, into=into, **options)
        assert not into.exists()
        assert len(s.store.sessions()) == 1
        s.fork(point, into=into, session_id="second").close()
        assert (into / "f").read_text() == "0"


def test_a_fork_that_fails_late_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store says no when the files are written already; a folder that was there stays."""
    work, into, given = (tmp_path / name for name in ("work", "into", "given"))
    work.mkdir()
    given.mkdir()
    (work / "f").write_text("0")
    with open_store("memory:") as store, Session.create(store, "s", cwd=work) as s:
        s.append(user("hi"))
        with monkeypatch.context() as broken:

            def refuse(*_: object, **__: object) -> None:
                assert (into / "f").exists() or (given / "f").exists()
                raise OSError("no")

            broken.setattr(store, "create", refuse)
            for place in (into, given):
                with pytest.raises(OSError, match="no"):
                    s.fork(into=place)
        assert not into.exists()
        assert list(given.iterdir()) == []
