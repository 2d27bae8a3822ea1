"""chat: the built-in agent, on a terminal or for one prompt."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from .._startup.shell import quoted
from ..errors import Unsupported
from ..exchange.resume import is_foreign
from .allow import with_allowance
from .nearby import here, root_here
from .output import clean
from .screen import Permission, Screen
from .talk import Chat, Memory, pick_session
from .verbs import NOT_DONE, Command, Usage
from .wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..events import Json, SessionInfo
    from ..session.keywords import SessionOptions
    from ..session.session import Session
    from .call import Call

INTERRUPTED = 130

PHASES = ("plan", "default", "accept_edits", "trusted", "bypass_permissions")
"""What the agent may do without asking, from the least to the most."""

PROMPT = (
    "You are a coding agent that works in the folder {cwd}. Look before you change, change "
    "only what is asked for, check your work, and answer briefly."
)
"""The system prompt of a new chat."""


def chat(call: Call) -> int:
    """Talk to the built-in agent."""
    given = call.arguments
    _check(call)
    prompt = sys.stdin.read() if given.prompt == "-" else given.prompt
    if prompt is not None and not prompt.strip():
        raise Usage("the prompt is empty")
    talks = call.out.can_ask and given.prompt != "-"
    known = _known(call)
    if known is None and given.resume is not None:
        call.out.note("no session was picked")
        return NOT_DONE
    screen = Screen(call.out)
    agent = _agent(call, known, Permission(call.out, screen) if talks else None)
    try:
        opening = _Opening(call, agent)
        session = opening.resumed(known) if known is not None else None
        talking = Chat(call, screen, opening.begun, opening.by_id, session)
        try:
            if talks:
                with Memory(None if given.no_persist else _history_file()):
                    return _talk(call, talking, session, prompt)
            return _once(call, talking, prompt or "")
        finally:
            talking.close()
    finally:
        close = getattr(agent, "close", None)
        if close is not None:
            close()


def _check(call: Call) -> None:
    """Refuse what makes no sense before anything is opened."""
    given = call.arguments
    old = given.continues or given.resume is not None
    if given.continues and given.resume is not None:
        raise Usage("give one of `--continue` and `--resume`")
    if (given.at is not None or given.fork) and not old:
        raise Usage(
            "`--at` and `--fork` are about an earlier session: add `--continue` or `--resume`"
        )
    if given.no_persist and old:
        raise Usage("`--no-persist` leaves nothing behind, so there is nothing to go on with")
    if given.resume == "" and not call.out.can_ask:
        raise Usage("there is no terminal to pick a session on: give its id, `--resume ID`")
    if given.prompt is None and not call.out.can_ask:
        raise Usage("there is no terminal to talk on: give a PROMPT, or `-` to read it from stdin")


def _talk(call: Call, talking: Chat, session: Session | None, prompt: str | None) -> int:
    if session is not None:
        count = plural(session.info().message_count, "message")
        url = _without_credentials(call.arguments.base_url)
        model = f"{call.arguments.model}{f' at {url}' if url else ''}"
        call.out.line(f"session {session.id}, {count}, with {model}", "dim")
    call.out.line("/help lists the commands, Ctrl-C interrupts, Ctrl-D leaves", "dim")
    return talking.talk(prompt)


def _once(call: Call, talking: Chat, prompt: str) -> int:
    """One turn; the answer is the data."""
    result = talking.say(prompt, quiet=True)
    session = talking.session
    if call.out.as_json:
        call.out.data(
            {
                "session": session.id if session and not call.arguments.no_persist else None,
                "text": result.text,
                "exit_reason": result.exit_reason,
                "usage": result.usage,
                "cost_usd": result.cost_usd,
                "files": result.files,
                "error": result.error,
            }
        )
    elif result.text:
        # All of it: unlike a line for people, data is not cut.
        sys.stdout.write(f"{clean(result.text)}\n")
    if result.error:
        call.out.note(f"backtrail: the turn ended with an error: {result.error}")
    elif result.exit_reason not in ("end_turn", "stop_sequence"):
        call.out.note(f"backtrail: the turn was ended by {result.exit_reason}")
    return {"error": 1, "interrupted": INTERRUPTED}.get(result.exit_reason, 0)


# --- the agent ---------------------------------------------------------------------------


def _agent(
    call: Call, known: SessionInfo | None, permission: Permission | None
) -> Callable[..., Json]:
    """The agent on the model that is named, or was used in the session."""
    from ..session.liveturn import resolve_agent

    given = call.arguments
    name = given.model or _model_of(known) or call.settings.text("model")
    if name is None:
        raise Usage(
            "which model? Give `--model PROVIDER:MODEL`, such as `ollama:qwen2.5-coder` or "
            "`anthropic:claude-sonnet-4-5`, or set BACKTRAIL_MODEL"
        )
    if ":" not in name or name.endswith(":"):
        raise Usage(f"`{name}` is no model: write `PROVIDER:MODEL`, such as `ollama:qwen2.5-coder`")
    given.model = name
    given.base_url = given.base_url or _server_of(known, name) or call.settings.text("base_url")
    if given.base_url is None and name.startswith("openai:"):
        # Known from the environment of today, which need not be that of tomorrow.
        given.base_url = os.environ.get("OPENAI_BASE_URL") or None
    options: dict[str, Json] = {
        "tools": [tool.strip() for tool in given.tools.split(",") if tool.strip()],
        "phase": given.phase,
    }
    if permission is not None:
        options["can_use_tool"] = permission
    if given.base_url is not None:
        options["base_url"] = given.base_url
    return resolve_agent(name, options)


def _model_of(info: SessionInfo | None) -> str | None:
    """The model that a session was last talked with here."""
    if info is None or not info.model:
        return None
    provider = info.metadata.get("provider")
    return f"{provider}:{info.model}" if isinstance(provider, str) else None


def _server_of(info: SessionInfo | None, model: str) -> str | None:
    """Where a session was last talked with at the same provider; None: at its own place."""
    from ..exchange.bundle.manifest import SERVER_THERE

    if info is None or info.metadata.get("provider") != model.partition(":")[0]:
        return None
    there = info.metadata.get(SERVER_THERE)
    if isinstance(there, str):
        # The packer of the session chose that server, and it would get the keys of this one.
        raise Usage(
            f"session `{info.id}` was imported and was talked with at {there}: to go on there, "
            f"say `--base-url {quoted(there)}`"
        )
    url = info.metadata.get("base_url")
    return url if isinstance(url, str) else None


def _without_credentials(url: str | None) -> str | None:
    """A URL as it may be kept: no name, password or query in it."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Usage(f"`{url}` is no URL: {error}") from error
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host, query="", fragment=""))


# --- the session -------------------------------------------------------------------------


def _known(call: Call) -> SessionInfo | None:
    """The earlier session that is meant; None for a new one, or if none was picked."""
    given = call.arguments
    if given.resume == "":
        picked = pick_session(call)
        return call.info(picked) if picked is not None else None
    if given.resume is not None:
        return call.info(given.resume)
    return call.info() if given.continues else None


class _Opening:
    """How sessions of this chat are opened: all with the same agent."""

    def __init__(self, call: Call, agent: Callable[..., Json]) -> None:
        from ..exchange.bundle.manifest import SERVER_THERE

        self._call = call
        provider, _, model = call.arguments.model.partition(":")
        self._options: SessionOptions = {
            "agent": agent,
            "model": model,
            "metadata": {
                "provider": provider,
                "base_url": _without_credentials(call.arguments.base_url),
                SERVER_THERE: None,
            },
        }

    def begun(self) -> Session:
        """A new session in this folder."""
        from ..session.session import Session

        given = self._call.arguments
        place = root_here(self._call, str(here()))
        known = self._options.get("metadata") or {}
        more: SessionOptions = {
            **self._options,
            "cwd": here(),
            "root": place.path,
            "metadata": {**known, **place.refused()},
            "agent_name": "backtrail",
            "system_prompt": given.system_prompt or PROMPT.format(cwd=here()),
        }
        if given.no_persist:
            more["persist"] = False
            return Session.create(None, None, **more)
        return Session.create(self._call.store, None, **more)

    def by_id(self, name: str) -> Session:
        """An earlier session, as it is."""
        return self._reopened(self._call.info(name), at=None, fork=False)

    def resumed(self, info: SessionInfo) -> Session:
        """The earlier session that the arguments name, at the point they name."""
        given = self._call.arguments
        session = self._reopened(info, at=given.at, fork=given.fork)
        if info.cwd is not None and info.cwd != str(here()):
            self._call.out.note(f"the agent works in {info.cwd}, not here")
        return session

    def _reopened(self, info: SessionInfo, *, at: str | None, fork: bool) -> Session:
        from ..session.fileplans import check_folder
        from ..session.session import Session

        if is_foreign(info) and not fork:
            raise Unsupported(
                f"session `{info.id}` belongs to {info.agent_name}: `backtrail resume {info.id}` "
                "shows how to go on there; `--fork` goes on with a copy here"
            )
        store = self._call.store
        root = info.root or info.cwd
        if root is not None:
            # The folder that a stranger's record names is none that the person chose to work in.
            with_allowance(self._call, lambda: check_folder(info, root))
        more: SessionOptions = {**self._options}
        if self._call.arguments.system_prompt is not None:
            more["system_prompt"] = self._call.arguments.system_prompt
        with Session.resume(store, info.id, files=False) as plain:
            point = self._call.point(plain, at) if at is not None else None
            if fork:
                # It is ours alone, whichever agent has its parent.
                more["metadata"] = {**(more["metadata"] or {}), "native": None}
                more |= {"files": True, "agent_name": "backtrail"}
                return plain.fork(point, **more)
        return Session.resume(store, info.id, point, **more)


def _history_file() -> Path:
    from platformdirs import user_state_path

    return user_state_path("backtrail") / "chat_history"


# --- options -----------------------------------------------------------------------------


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="what to say; `-`: from stdin")
    parser.add_argument("--model", metavar="PROVIDER:MODEL", help="such as ollama:qwen2.5-coder")
    parser.add_argument("--base-url", metavar="URL", help="where the provider's server is")
    parser.add_argument(
        "-c", "--continue", dest="continues", action="store_true", help="the latest session here"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="ID",
        help="an earlier session; without ID you pick",
    )
    parser.add_argument("--at", metavar="POINT", help="go on from this point of it")
    parser.add_argument("--fork", action="store_true", help="go on in a copy of it")
    parser.add_argument("--no-persist", action="store_true", help="leave nothing behind")
    parser.add_argument(
        "--tools", default="all", metavar="NAMES", help="all (default), none, or read,grep,bash …"
    )
    parser.add_argument(
        "--phase",
        choices=PHASES,
        default="default",
        help="what the agent may do unasked (default: read; edits and commands ask)",
    )
    parser.add_argument("--system-prompt", metavar="TEXT", help="in place of our own")


COMMANDS: dict[str, Command] = {
    "chat": Command(
        _options,
        chat,
        """
        backtrail chat --model ollama:qwen2.5-coder
        backtrail chat -c                             go on with the latest session here
        backtrail chat --resume 01a1e22c --at @-2 --fork
        backtrail chat --phase plan "what does this project do?"
        git diff | backtrail chat --tools none -      one turn, no terminal needed
        """,
        "Every turn is recorded and can be taken back, files included. Without a terminal\n"
        "PROMPT is one turn; tools that would ask are then refused, unless --phase lets them.",
    )
}
