"""Models at any provider: opening them, what goes wrong, prices."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Literal

import anyio
import pytest

from backtrail import BacktrailError, Unsupported
from backtrail.agent.models.base import PROVIDERS, Delta, Model, ModelFailed, Request, open_model
from backtrail.agent.models.prices import AS_OF, PRICES, cost, price_of
from backtrail.errors import Closed

from .conftest import Talk, failure_of, notified, reply_of
from .servers import Answer, AnthropicServer, Broken, Failure, OpenAIServer

Server = OpenAIServer | AnthropicServer
HELLO = Request([{"role": "user", "content": "hi"}])


@pytest.fixture(params=["openai", "anthropic"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with OpenAIServer() if request.param == "openai" else AnthropicServer() as server:
        yield server


def model_at(server: Server, **options: object) -> Model:
    provider = "openai" if isinstance(server, OpenAIServer) else "anthropic"
    return open_model(provider, "m-1", base_url=server.url, api_key="k", **options)


# --- answers -----------------------------------------------------------------------------


def test_words_come_in_pieces_and_then_as_a_reply(server: Server, talk: Talk) -> None:
    """Deltas first, in order; the last item is the whole reply."""
    server.script("hello, world")
    (outcome,) = talk(model_at(server), HELLO)
    reply = reply_of(outcome)
    assert notified(outcome) == "hello, world"
    assert reply.stop_reason == "end_turn"
    assert reply.model == "m-1"
    assert reply.usage["input_tokens"] and reply.usage["output_tokens"]
    assert not isinstance(outcome, ModelFailed) and len(outcome) == 4


def test_limits_and_extra_fields_are_sent(server: Server, talk: Talk) -> None:
    """Stop sequences, the longest answer, further fields and headers."""
    server.script("x")
    model = model_at(server, extra={"seed": 7}, headers={"x-mine": "yes"})
    talk(model, Request(HELLO.messages, max_tokens=9, stop=["END"]))
    body = server.requests[0]
    assert body["max_tokens"] == 9
    assert body["seed"] == 7
    assert ["END"] in (body.get("stop"), body.get("stop_sequences"))
    assert server.headers[0]["x-mine"] == "yes"


def test_a_connection_serves_many_requests(server: Server, talk: Talk) -> None:
    """And nothing of one answer is in the next."""
    server.script("one", "two", "three")
    outcomes = talk(model_at(server), HELLO, HELLO, HELLO)
    assert [notified(outcome) for outcome in outcomes] == ["one", "two", "three"]


# --- what goes wrong ---------------------------------------------------------------------


def test_what_passes_is_transient(server: Server, talk: Talk) -> None:
    """The client tries once; whether to try again is the loop's choice."""
    statuses = [408, 429, 500, 502, 503, 529]
    server.script(*(Failure(status, "busy", {"retry-after": "7"}) for status in statuses), "fine")
    *failed, after = talk(model_at(server), *[HELLO] * 7)
    failures = [failure_of(outcome) for outcome in failed]
    assert [failure.status for failure in failures] == statuses
    assert all(failure.transient and failure.retry_after == 7 for failure in failures)
    assert all("busy" in str(failure) and "m-1" in str(failure) for failure in failures)
    assert notified(after) == "fine"
    assert len(server.requests) == 7


def test_what_stays_is_not_transient(server: Server, talk: Talk) -> None:
    """And the server's own words are in the error."""
    statuses = [400, 401, 403, 404, 413, 422]
    server.script(*(Failure(status, "no such model: m-1") for status in statuses))
    failures = [failure_of(outcome) for outcome in talk(model_at(server), *[HELLO] * 6)]
    assert [failure.status for failure in failures] == statuses
    for failure in failures:
        assert not failure.transient and failure.retry_after is None
        assert "no such model: m-1" in str(failure)
        assert isinstance(failure, BacktrailError)


def test_retry_after_has_three_spellings(server: Server, talk: Talk) -> None:
    """Seconds, milliseconds, a date; nonsense is none."""
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    server.script(
        Failure(429, headers={"retry-after-ms": "1500"}),
        Failure(429, headers={"retry-after": soon}),
        Failure(429, headers={"retry-after": "soon"}),
        Failure(429),
    )
    waits = [failure_of(o).retry_after for o in talk(model_at(server), *[HELLO] * 4)]
    assert waits[0] == 1.5
    assert waits[1] is not None and 50 < waits[1] <= 60
    assert waits[2:] == [None, None]


@pytest.mark.parametrize("how", ["cut", "end", "error"])
def test_an_answer_that_breaks_off_is_transient(
    server: Server, talk: Talk, how: Literal["cut", "end", "error"]
) -> None:
    """However it breaks off and wherever, there is no reply, and the next request works."""
    long = Answer("a long answer that never comes to its end")
    server.script(*(Broken(long, after, how) for after in range(6)), "fine")
    *failed, fine = talk(model_at(server), *[HELLO] * 7)
    assert all(failure_of(outcome).transient for outcome in failed)
    assert notified(fine) == "fine"


def test_an_error_in_the_stream_has_its_status(talk: Talk) -> None:
    """Anthropic names the kind of it after it has answered 200."""
    with AnthropicServer() as server:
        server.script(
            Broken("hello", 4, "error"), Broken("hello", 4, "error", "invalid_request_error")
        )
        busy, wrong = map(failure_of, talk(model_at(server), HELLO, HELLO))
        assert (busy.status, busy.transient) == (529, True)
        assert (wrong.status, wrong.transient) == (400, False)


def test_a_connection_lost_behind_the_answer_does_no_harm(server: Server, talk: Talk) -> None:
    """The model had said why it stopped: the reply is whole."""
    # Role, two pieces, why it stopped; or start, ping, four of the block, why it stopped.
    server.script(Broken("hello you", 4 if isinstance(server, OpenAIServer) else 7, "cut"))
    assert reply_of(talk(model_at(server), HELLO)[0]).stop_reason == "end_turn"


def test_silence_is_a_timeout(server: Server, talk: Talk) -> None:
    """A server that hangs in the middle is given up."""
    server.script(Broken("hello, world", 3, "hang"))
    failure = failure_of(talk(model_at(server, timeout=0.3), HELLO)[0])
    assert failure.transient


def test_a_server_that_is_not_there_is_transient(server: Server, talk: Talk) -> None:
    """A server that is down may come up."""
    server.stop()
    model = model_at(server)
    failure = failure_of(talk(model, HELLO)[0])
    assert failure.transient and failure.status is None


def test_money_that_is_used_up_does_not_come_back(talk: Talk) -> None:
    """OpenAI says that with 429."""
    with OpenAIServer() as server:
        server.script(Failure(429, "pay", kind="insufficient_quota", code="insufficient_quota"))
        assert not failure_of(talk(model_at(server), HELLO)[0]).transient


def test_an_iterator_closed_early_ends_the_connection(server: Server) -> None:
    """The server notices, so that it stops to compute."""
    server.script(Answer("x" * 100_000, piece=10, pause=0.001))
    with closing(model_at(server)) as model:
        stream = model.stream(HELLO)
        assert isinstance(next(stream), Delta)
        assert isinstance(stream, Iterator)
        stream.close()  # type: ignore[attr-defined]
        _until(lambda: server.disconnected == 1)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelling_ends_the_connection(server: Server, backend: str) -> None:
    """In an event loop, too."""
    server.script(Answer("x" * 100_000, piece=10, pause=0.001))

    async def main() -> None:
        model = model_at(server)
        with anyio.CancelScope() as scope:
            async for _ in model.astream(HELLO):
                scope.cancel()
        assert scope.cancelled_caught
        await model.aclose()

    anyio.run(main, backend=backend)
    _until(lambda: server.disconnected == 1)


def test_an_error_of_the_listener_is_not_the_servers(server: Server) -> None:
    """What is thrown into the iterator comes out as it is."""
    server.script("hello, world")
    with closing(model_at(server)) as model:
        stream = model.stream(HELLO)
        next(stream)
        with pytest.raises(ValueError, match="mine"):
            stream.throw(ValueError("mine"))  # type: ignore[attr-defined]


def test_threads_share_a_model(server: Server) -> None:
    """Each gets its own answer."""
    server.script(*["same"] * 8)
    heard: list[str] = []
    with closing(model_at(server)) as model:
        threads = [
            threading.Thread(target=lambda: heard.append(notified(list(model.stream(HELLO)))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert heard == ["same"] * 8


def test_a_closed_model_says_so(server: Server) -> None:
    """Closing twice is fine."""
    model = model_at(server)
    model.close()
    model.close()
    with pytest.raises(Closed):
        list(model.stream(HELLO))


# --- opening -----------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_opens(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key or without; nothing is connected yet."""
    for key in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(key, "k")
    model = open_model(provider, "m-1")
    assert (model.provider, model.name) == (provider, "m-1")
    assert model.format == ("anthropic" if provider == "anthropic" else "openai")
    model.close()


@pytest.mark.parametrize("provider", ["openai", "openrouter", "anthropic"])
def test_a_missing_key_is_reported_at_once(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name of the variable."""
    for key in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    for key in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(Unsupported, match=f"{provider.upper()}_API_KEY"):
        open_model(provider, "m-1")


def test_a_key_for_openai_stays_with_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local server, or another company's, is not sent it, nor the organisation."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
    with OpenAIServer() as server:
        for provider in ("ollama", "vllm", "lmstudio", "openrouter"):
            server.script("x")
            with closing(open_model(provider, "m", base_url=server.url)) as model:
                list(model.stream(HELLO))
        assert "secret" not in str(server.headers)


def test_an_unknown_provider_is_an_error_that_names_the_others() -> None:
    """And that any server of the protocol will do."""
    with pytest.raises(Unsupported, match=r"`acme`.*ollama.*base_url"):
        open_model("acme", "m-1")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_unknown_option_is_reported_at_once(provider: str) -> None:
    """Not when the model is first asked."""
    with pytest.raises(TypeError, match="tempo"):
        open_model(provider, "m-1", tempo=1, **({} if provider == "scripted" else {"api_key": "k"}))


@pytest.mark.parametrize("package", ["openai", "anthropic"])
def test_a_missing_client_names_the_line_to_install(package: str) -> None:
    """The exact one, when a model is opened."""
    code = (
        "import importlib.util as u; find = u.find_spec\n"
        f"u.find_spec = lambda n, *a: None if n == {package!r} else find(n, *a)\n"
        "from backtrail.agent.models.base import open_model\n"
        "from backtrail import Unsupported\n"
        f"try: open_model({package!r}, 'm', api_key='k')\n"
        "except Unsupported as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"pip install '{package}" in done.stdout, done.stderr


def test_opening_a_model_imports_no_client() -> None:
    """It takes most of a second; only asking pays for it."""
    code = (
        "import sys; from backtrail.agent.models.base import open_model\n"
        "open_model('ollama', 'm'); open_model('anthropic', 'm', api_key='k')\n"
        "print([n for n in ('openai', 'anthropic', 'httpx', 'httpx2') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


# --- prices ------------------------------------------------------------------------------


def test_cost_of_both_ways_to_count_a_cache() -> None:
    """OpenAI counts what it read from the cache among the input, Anthropic beside it."""
    usage = {"input_tokens": 1_000_000, "cache_read_tokens": 400_000, "output_tokens": 100_000}
    assert cost("gpt-4o", usage) == pytest.approx(0.6 * 2.5 + 0.4 * 1.25 + 1)
    usage["cache_write_tokens"] = 200_000
    assert cost("claude-sonnet-4-5", usage) == pytest.approx(3 + 0.4 * 0.3 + 0.2 * 3.75 + 1.5)


def test_versions_of_a_model_cost_the_same() -> None:
    """A date behind the name, or a provider before it."""
    price = price_of("gpt-4o")
    assert price_of("gpt-4o-2024-08-06") == price_of("openai/gpt-4o") == price
    sonnet = price_of("claude-sonnet-4-5")
    assert (
        price_of("claude-sonnet-4-5-20250929") == price_of("anthropic/claude-sonnet-4.5") == sonnet
    )


def test_an_unknown_price_is_none() -> None:
    """Never nought: that would be a lie."""
    assert cost("qwen2.5-coder", {"input_tokens": 5}) is None
    assert cost("gpt-4o-audio-preview", {"input_tokens": 5}) is None
    assert cost("gpt-4o", {}) is None
    assert datetime.fromisoformat(AS_OF) < datetime.now()
    assert all(price.output > price.input > price.cache_read > 0 for price in PRICES.values())


def _until(rule: Callable[[], bool]) -> None:
    """Wait until it holds."""
    waiting = threading.Event()
    for _ in range(500):
        if rule():
            return
        waiting.wait(0.01)
    raise AssertionError("it never came true")
