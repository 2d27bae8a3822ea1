"""Hooks of the host: all seven, what they are given, and what they may forbid."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from backtrail import Session, open_store
from backtrail.agent.compaction import Compaction
from backtrail.agent.hooks import NAMES, Hooks, Veto
from backtrail.agent.loop import Loop
from backtrail.agent.models.base import ModelFailed
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.subagents import spawn
from backtrail.agent.tools import tools_named
from backtrail.errors import InvalidData
from backtrail.events import Json
from backtrail.stores.buffered import Buffered

from .servers import OpenAIServer
from .test_loop import results
from .test_turns import call, calling, ends, roles, saying

About = Mapping[str, Json]
LOOK = calling(call("g", "glob", pattern="*.nothing"))


class Ears:
    """Hooks that hear everything, and refuse what they are to."""

    def __init__(self, no: str = "", how: object = False) -> None:
        self.heard: list[dict[str, Json]] = []
        self._no = no
        self._how = how

    @property
    def known(self) -> dict[str, Callable[..., Json]]:
        return dict.fromkeys(NAMES, self)

    @property
    def names(self) -> list[str]:
        return [about["hook"] for about in self.heard]

    def __call__(self, about: About) -> Json:
        self.heard.append(dict(about))
        if about["hook"] == self._no:
            if isinstance(self._how, Exception):
                raise self._how
            return self._how
        return None


def agent(ears: Ears, *replies: Json, **options: Json) -> Loop:
    return Loop(
        ScriptedModel(list(replies)), tools_named("all"), Permissions("trusted"),
        Hooks(ears.known), spawn=spawn, **options,
    )  # fmt: skip


def test_every_hook_is_called(url: str, tmp_path: Path) -> None:
    """In this order; `on_session_start` once, when the first turn begins."""
    ears = Ears()
    loop = agent(ears, LOOK, saying("one"), ModelFailed("broken"), saying("two"))
    with Session.open(url, "s", agent=loop, cwd=tmp_path, title="t") as s:
        assert ears.names == []
        s.send("first")
        s.send("second")
        s.send("third")
    turn = ["on_prompt", "before_tool", "after_tool", "on_stop"]
    assert ears.names == [
        "on_session_start",
        *turn,
        "on_prompt",
        "on_error",
        "on_prompt",
        "on_stop",
    ]
    notified = {about["hook"]: about for about in reversed(ears.heard)}
    assert notified["on_prompt"]["prompt"] == "first"
    assert notified["before_tool"]["tool"] == notified["after_tool"]["tool"] == "glob"
    assert notified["before_tool"]["input"] == {"pattern": "*.nothing"}
    assert notified["before_tool"]["call_id"] == "g"
    assert isinstance(notified["after_tool"]["result"], str)
    assert notified["on_stop"]["message"] == saying("one")
    assert "broken" in notified["on_error"]["error"]
    for about in ears.heard:
        assert (about["session_id"], about["parent_session_id"]) == ("s", None)
        assert about["cwd"] == str(tmp_path)
    with Session.open(url, "s", agent=agent(ears, saying("x"))) as s:
        s.send("again")
    assert ears.names.count("on_session_start") == 2


def test_the_transcript_is_a_file_of_json_lines(url: str) -> None:
    """The store's own, or one that is written when a caller asks for it."""
    lines: list[list[str]] = []

    def before_tool(about: About) -> None:
        path = Path(about["transcript_path"])
        assert path.suffix == ".jsonl"
        lines.append(path.read_text().splitlines())
        assert all(isinstance(json.loads(line), (dict, list)) for line in lines[-1])

    model = ScriptedModel([LOOK, LOOK, saying("done")])
    hooks = Hooks({"before_tool": before_tool})
    loop = Loop(model, tools_named("all"), Permissions("trusted"), hooks)
    with Session.open(url, "s", agent=loop) as s:
        s.send("go")
    first, second = lines
    assert "assistant_message" in first[-1]
    assert "assistant_message" in second[-1]
    assert len(second) == len(first) + 2


def test_a_fork_and_a_subagent_have_a_parent() -> None:
    """Hooks of a subagent are called with its own id, and its parent's."""
    ears = Ears()
    task = calling(call("t", "task", description="d", prompt="p"))
    loop = agent(ears, saying("x"), task, LOOK, saying("none"), saying("ok"))
    with Session.open("memory:", "s", agent=loop) as s:
        s.send("go")
        with s.fork(session_id="f") as fork:
            fork.send("go")
    assert ears.names.count("on_session_start") == 2
    (inner,) = (a for a in ears.heard if a["hook"] == "before_tool" and a["tool"] == "glob")
    assert inner["session_id"].startswith("subagent_")
    assert inner["parent_session_id"] == "f"
    (outer,) = (a for a in ears.heard if a["hook"] == "before_tool" and a["tool"] == "task")
    assert (outer["session_id"], outer["parent_session_id"]) == ("f", "s")


# --- saying no ---------------------------------------------------------------------------

SAYING_NO = pytest.mark.parametrize("how", [False, Veto("not today"), KeyError("bug")], ids=str)


@SAYING_NO
@pytest.mark.parametrize("name", ["on_session_start", "on_prompt"])
def test_a_turn_may_be_forbidden(name: str, how: object) -> None:
    """The model is not asked; the turn ends with an error that names the hook."""
    loop = agent(Ears(name, how), saying("never"))
    with Session.open("memory:", agent=loop) as s:
        done = s.send("go")
        assert done.exit_reason == "error"
        assert done.error is not None and done.error.startswith("refused: ")
        assert isinstance(loop.model, ScriptedModel)
        assert loop.model.requests == []
        assert roles(s) == []
        assert [e.data["message"]["content"] for e in s.events(kinds=("user_message",))] == ["go"]
        assert s.info().turn_count == 0


@pytest.mark.parametrize("url", ["memory:", "buffered", "sqlite"])
def test_a_forbidden_prompt_never_reaches_a_model(tmp_path: Path, url: str) -> None:
    """Nor with the next one; asked again by its id it is what it was."""

    def decent(about: About) -> None:
        if "hunter2" in about["prompt"]:
            raise Veto("no secrets")

    inner = open_store("memory:" if url != "sqlite" else f"sqlite:///{tmp_path}/x.db")
    store = Buffered(inner) if url == "buffered" else inner
    model = ScriptedModel([saying("one"), saying("two")])
    loop = Loop(model, hooks=Hooks({"on_prompt": decent}))
    with store, Session.open(store, agent=loop, system_prompt="Be brief.") as s:
        s.send("hello")
        first = s.send("the secret is hunter2", id="a")
        assert first.exit_reason == "error"
        assert s.send("bye").text == "two"
        assert "hunter2" not in repr(model.requests)
        assert [m["content"] for m in s.messages()] == ["Be brief.", "hello", "one", "bye", "two"]
        again = s.send("the secret is hunter2", id="a")
        assert (again.error, again.messages, again.usage) == (first.error, [], {})
        assert (s.info().turn_count, s.info().message_count) == (2, 5)


@SAYING_NO
def test_a_tool_may_be_forbidden(tmp_path: Path, how: object) -> None:
    """The model is sent the reason, and the tool does not run."""
    loop = agent(Ears("before_tool", how), calling(call("1", "bash", command="touch a")), "I see.")
    with Session.open("memory:", agent=loop, cwd=tmp_path) as s:
        assert s.send("go").text == "I see."
        notified = results(s)[0]
        assert "before_tool" in notified or "not today" in notified
        assert not (tmp_path / "a").exists()


@SAYING_NO
def test_compaction_may_be_forbidden(how: object) -> None:
    """Everything is sent then."""
    loop = agent(Ears("before_compact", how), *["x" * 400] * 6)
    loop.compaction = Compaction(window=100, keep=2)
    with Session.open("memory:", agent=loop) as s:
        for _ in range(6):
            s.send("go")
        assert isinstance(loop.model, ScriptedModel)
        assert [len(r.messages) for r in loop.model.requests] == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("name", ["after_tool", "on_stop", "on_error"])
def test_a_listener_that_fails_breaks_nothing(name: str) -> None:
    """It is noted in the session's problems; False is no veto there."""
    for how in (False, ZeroDivisionError("bug")):
        ears = Ears(name, how)
        loop = agent(ears, LOOK, saying("fine"), ModelFailed("broken"))
        with Session.open("memory:", agent=loop) as s:
            assert s.send("go").text == "fine"
            assert "ZeroDivisionError" not in results(s)[0]
            assert s.send("more").exit_reason == "error"
            assert bool(s.problems) == isinstance(how, Exception)
            assert ends(s) == ["end_turn", "error"]


def test_errors_of_an_agent_are_heard() -> None:
    """Whatever it is that raises."""
    ears = Ears()
    s = Session.open("memory:", agent=agent(ears, ZeroDivisionError("bug")))
    with s, pytest.raises(ZeroDivisionError):
        s.send("go")
    assert ears.heard[-1]["hook"] == "on_error"
    assert ears.heard[-1]["error"] == "ZeroDivisionError: bug"


def test_only_known_hooks_and_plain_ones() -> None:
    """A misspelt hook would never say no, nor would an asynchronous one."""
    with pytest.raises(InvalidData, match="before_tol"):
        Hooks({"before_tol": print})

    async def later(about: About) -> bool:
        return False

    model = ScriptedModel(["never"])
    with Session.open("memory:", agent=Loop(model, hooks=Hooks({"on_prompt": later}))) as s:
        assert "plain function" in str(s.send("go").error)
    assert model.requests == []


def test_hooks_are_an_option_of_a_session() -> None:
    """As the seeds have it, and they are never stored."""
    ears = Ears()
    with OpenAIServer() as server:
        server.script("hi")
        options = {"base_url": server.url}
        with Session.open("memory:", agent="vllm:m", hooks=ears.known, agent_options=options) as s:
            s.send("hello")
    assert ears.names == ["on_session_start", "on_prompt", "on_stop"]
