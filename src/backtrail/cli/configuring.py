"""`config`: the settings, and where each comes from."""

from __future__ import annotations

from argparse import ArgumentParser

from .call import Call
from .verbs import Command


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=["show"], default="show", help="show (default)")


def _run(call: Call) -> None:
    from ..settings import KEYS, PROJECT_FILE, project_file, user_path
    from ..stores.opening import default_url

    found = call.settings.values
    project = project_file()
    defaults = {"store": default_url(), "budget": "10 GB, or 5 % of the disk"}
    if call.out.as_json:
        rows = {
            name: {"value": setting.value, "origin": setting.origin}
            for name, setting in found.items()
        }
        if rows["store"]["value"] is None:
            rows["store"]["value"] = defaults["store"]
        files = {"user": str(user_path()), "project": str(project) if project else None}
        call.out.data({"settings": rows, "files": files})
        return
    rows_shown = []
    for name, setting in found.items():
        value = defaults.get(name, "–") if setting.value is None else _shown(setting.value)
        rows_shown.append([name, value, setting.origin, KEYS[name].about])
    call.out.table(
        ["setting", "value", "from", "what it is for"],
        rows_shown,
        styles={"setting": "cyan", "from": "dim", "what it is for": "dim"},
    )
    call.out.note(f"your file: {user_path()}; a project's: {project or PROJECT_FILE}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g} s" if isinstance(value, float) else str(value)


COMMANDS = {
    "config": Command(
        _options,
        _run,
        """
        backtrail config show
        backtrail config show --json
        """,
        about="A flag counts more than the environment, that more than the project's "
        ".backtrail.toml,\nthat more than your own file.",
    )
}
