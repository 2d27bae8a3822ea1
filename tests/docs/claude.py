"""A stand-in for an agent with hooks: it reads its settings and calls what stands there.

It works as Claude Code does as far as hooks see it: a prompt, a `Write`, a command in the
shell. It is a program of its own: `python claude.py`, with a home folder to read settings from.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

SESSION = "5e551011-0000-4000-8000-000000000001"


def call_hooks(event: str, **fields: object) -> None:
    """Call every hook of an event that matches, with JSON on its stdin."""
    settings = json.loads((Path.home() / ".claude" / "settings.json").read_text())
    folder = Path.home() / ".claude" / "projects" / "greeter"
    given = {
        "session_id": SESSION,
        "transcript_path": str(folder / f"{SESSION}.jsonl"),
        "cwd": str(Path.cwd()),
        "hook_event_name": event,
        **fields,
    }
    for group in settings["hooks"].get(event, []):
        if re.search(group.get("matcher", ""), str(fields.get("tool_name", ""))):
            for hook in group["hooks"]:
                subprocess.run(
                    hook["command"], shell=True, check=True, input=json.dumps(given), text=True
                )


def use(id: str, name: str, input: dict[str, str], command: str) -> None:
    """A tool call between its two hooks."""
    call = {"tool_name": name, "tool_input": input, "tool_use_id": id}
    call_hooks("PreToolUse", **call)
    subprocess.run(command, shell=True, check=True)
    call_hooks("PostToolUse", tool_response={}, **call)


def main() -> None:
    """A session of two prompts."""
    call_hooks("SessionStart", source="startup")
    call_hooks("UserPromptSubmit", prompt="Write a readme.")
    path = str(Path("README.md").absolute())
    use(
        "t1", "Write", {"file_path": path, "content": "# Greeter\n"}, "echo '# Greeter' > README.md"
    )
    call_hooks("Stop", stop_hook_active=False)
    call_hooks("UserPromptSubmit", prompt="Clean up.")
    command = "rm -rf .env README.md"
    use("t2", "Bash", {"command": command}, command)
    call_hooks("Stop", stop_hook_active=False)
    call_hooks("SessionEnd", reason="exit")
    sys.stdout.write("Done.\n")


if __name__ == "__main__":
    main()
