"""What each agent calls its events and tools, and which tools can write.

Field names are the same everywhere; names of events and tools are not. A tool that is not
known to only read may write: then a bracket is put around it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from ..._startup.frozen import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ...events import Json

AgentName = Literal["claude-code", "codex", "gemini"]
"""The agents that have hooks."""

Verb = Literal["start", "prompt", "before", "asked", "denied", "after", "failed", "stop",
               "interrupted", "substop", "end", "check"]  # fmt: skip
"""What an event means to us, whatever its name."""


class Dialect(NamedTuple):
    """One agent's words."""

    agent: AgentName
    title: str
    events: dict[str, Verb]
    readers: frozenset[str]
    has_transcript: bool
    """Whether its transcript is mirrored; otherwise the conversation is what hooks report."""
    project: str
    """The variable that names the project, where there is one."""
    home: tuple[str, str]
    """The variable that names the folder of its things, and that folder in the person's home."""


CHECK = "BacktrailCheck"
"""The event by which `hooks status` tries an installed hook."""

# A subagent's own calls come with hooks of their own, so to start or wait for one only reads.
_CLAUDE_READERS = """
    Read Grep Glob LS NotebookRead WebFetch WebSearch TodoWrite TodoRead TaskCreate TaskGet TaskList
    TaskUpdate TaskOutput BashOutput AskUserQuestion EnterPlanMode ExitPlanMode ToolSearch Agent
    Task
"""
_CODEX_READERS = """
    read_file list_dir grep_files view_image web_search update_plan request_user_input
    list_mcp_resources read_mcp_resource tool_search get_goal create_goal update_goal
"""
_CODEX_AGENTS = """
    spawn_agent wait_agent close_agent resume_agent list_agents send_input send_message
    followup_task interrupt_agent
"""
"""These names are put behind a prefix, too."""

_GEMINI_READERS = """
    read_file read_many_files list_directory glob search_file_content grep_search web_fetch
    google_web_search write_todos ask_user update_topic activate_skill enter_plan_mode
    exit_plan_mode complete_task get_internal_docs list_mcp_resources read_mcp_resource
    list_background_processes read_background_output invoke_agent
"""
_AGENTS = [
    f"{prefix}{name}"
    for prefix in ("", "multi_agent_v1", "collaboration")
    for name in _CODEX_AGENTS.split()
]

DIALECTS: dict[str, Dialect] = {
    "claude-code": Dialect(
        "claude-code",
        "Claude Code",
        {"SessionStart": "start", "UserPromptSubmit": "prompt", "PreToolUse": "before",
         "PermissionRequest": "asked", "PermissionDenied": "denied", "PostToolUse": "after",
         "PostToolUseFailure": "failed", "Stop": "stop", "SubagentStop": "substop",
         "SessionEnd": "end"},
        frozenset(_CLAUDE_READERS.split()),
        True,
        "CLAUDE_PROJECT_DIR",
        ("CLAUDE_CONFIG_DIR", ".claude"),
    ),
    "codex": Dialect(
        "codex",
        "Codex",
        {"SessionStart": "start", "UserPromptSubmit": "prompt", "PreToolUse": "before",
         "PermissionRequest": "asked", "PostToolUse": "after", "Stop": "stop",
         "Interrupt": "interrupted", "SubagentStop": "substop", "SessionEnd": "end"},
        frozenset([*_CODEX_READERS.split(), *_AGENTS]),
        True,
        "",
        ("CODEX_HOME", ".codex"),
    ),
    "gemini": Dialect(
        "gemini",
        "Gemini CLI",
        {"SessionStart": "start", "BeforeAgent": "prompt", "BeforeTool": "before",
         "Notification": "asked", "AfterTool": "after", "AfterAgent": "stop", "SessionEnd": "end"},
        frozenset(_GEMINI_READERS.split()),
        False,
        "GEMINI_PROJECT_DIR",
        ("GEMINI_CLI_HOME", ""),
    ),
}  # fmt: skip
"""By the name that `backtrail hook` is called with."""

_EDITORS = {
    "Write": "file_path",
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "NotebookEdit": "notebook_path",
    "write_file": "file_path",
    "replace": "file_path",
}
_PATCH_LINES = ("*** Add File", "*** Update File", "*** Delete File", "*** Move to")


def home_of(agent: str) -> Path:
    """Where an agent keeps its things."""
    from pathlib import Path

    variable, usual = DIALECTS[agent].home
    return Path(os.environ.get(variable) or Path.home() / usual)


def verb_of(dialect: Dialect, event: Mapping[str, Json]) -> Verb | None:
    """What an event asks for; None if nothing."""
    name = event.get("hook_event_name")
    if not isinstance(name, str):
        return None
    verb = "check" if name == CHECK else dialect.events.get(name)
    calls = ("before", "asked", "denied", "after", "failed")
    if verb in calls and event.get("tool_name") in dialect.readers:
        return None
    if name == "Notification" and event.get("notification_type") != "ToolPermission":
        return None
    return verb


def digest_of(text: str) -> str:
    """A short name of a text, by which a call is known again; cheap, as a hook makes it."""
    import zlib

    data = text.encode("utf-8", "replace")
    return f"{len(data):x}-{zlib.crc32(data):08x}"


def gist_of(given: Json) -> str:
    """The digest of a call's command or path: what an agent's question says of it, too."""
    if isinstance(given, dict):
        for name in ("command", "file_path", "filePath", "notebook_path"):
            found = given.get(name)
            if isinstance(found, str) and found:
                return digest_of(found)
    return ""


def declared(tool: str, given: Json, cwd: str) -> list[str] | None:
    """The paths that a tool says it will touch; None if it may touch anything."""
    if not isinstance(given, dict):
        return None
    if tool in _EDITORS:
        named = given.get(_EDITORS[tool])
        paths = [named] if isinstance(named, str) and named else []
    elif tool == "apply_patch":
        paths = _patched(given)
    else:
        paths = []
    if not paths or any("\0" in path for path in paths):
        return None
    from pathlib import Path

    found = [str(Path(cwd, path).expanduser()) for path in paths]
    # Behind a link it is the target that changes.
    return list(dict.fromkeys([*found, *(os.path.realpath(path) for path in found)]))


def _patched(given: Mapping[str, Json]) -> list[str]:
    """The paths in a patch, wherever in the input it is."""
    texts = (value for value in given.values() if isinstance(value, str))
    text = next((text for text in texts if "*** Begin Patch" in text), "")
    found = (line.partition(": ") for line in text.split("\n"))
    return [name.strip() for lead, _, name in found if lead in _PATCH_LINES]
