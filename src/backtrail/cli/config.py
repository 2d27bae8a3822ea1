"""`config`: the settings, and where each comes from."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from .allow import refuse_agents
from .call import Call
from .verbs import Command, Usage


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=["show", "allow", "forbid"],
        default="show",
        help="show (default); allow: let strangers' sessions write into a folder, and use the "
        "store that it brings; forbid: take that back",
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the folder (default: this one)")


def _run(call: Call) -> None:
    what, folder = call.arguments.what, call.arguments.folder
    if what == "show":
        if folder is not None:
            raise Usage("`config show` is about the current folder: go there")
        _show(call)
        return
    from ..settings.allowance import allow, forbid, is_allowed

    place = str(Path(folder or ".").expanduser().resolve())
    if what == "allow":
        refuse_agents(call, "config allow")
        place = allow(place)
    else:
        forbid(place)
    if call.out.as_json:
        call.out.data({"folder": place, "allowed": is_allowed(place)})
    else:
        call.out.line(f"{'allowed' if what == 'allow' else 'not allowed any more'}: {place}")


def _show(call: Call) -> None:
    from ..settings import KEYS, PROJECT_FILE, project_file, user_path
    from ..settings.allowance import allowed
    from ..stores.opening import default_url, masked

    found = dict(call.settings.values)
    url = call.settings.store
    if url is not None:
        found["store"] = found["store"]._replace(value=masked(url))
    project = project_file()
    warnings = call.settings.warnings
    defaults = {"store": default_url(), "budget": "10 GB, or 5 % of the disk"}
    if call.out.as_json:
        rows = {
            name: {"value": setting.value, "origin": setting.origin}
            for name, setting in found.items()
        }
        if rows["store"]["value"] is None:
            rows["store"]["value"] = defaults["store"]
        files = {"user": str(user_path()), "project": str(project) if project else None}
        call.out.data({"settings": rows, "files": files, "allowed": allowed(),
                       "warnings": list(warnings)})  # fmt: skip
        return
    rows_shown = []
    for name, setting in found.items():
        value = defaults.get(name, "–") if setting.value is None else _shown(setting.value)
        rows_shown.append([name, value, setting.origin, KEYS[name].about])
    broad = max(len(name) for name, *_ in rows_shown)
    for name, value, origin, about in rows_shown:
        # Lines and no table: a value may be a path, and half of a path is of no use.
        call.out.spans((name.ljust(broad), "cyan"), (f"  {value}", ""), (f"  ({origin})", "dim"))
        call.out.line(f"{'':{broad}}  {about}", "dim")
    call.out.note(f"your file: {user_path()}; a project's: {project or PROJECT_FILE}")
    if folders := allowed():
        call.out.note(f"folders you allowed: {', '.join(folders)}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(value) or "–"
    return f"{value:g} s" if isinstance(value, float) else str(value)


COMMANDS = {
    "config": Command(
        _options,
        _run,
        """
        backtrail config show
        backtrail config show --json
        backtrail config allow         strangers' sessions may write into this folder
        backtrail config forbid ../app
        """,
        about="A flag counts more than the environment, that more than the project's "
        ".backtrail.toml,\nthat more than your own file. What a project may not set is said, and "
        "has no effect.",
    )
}
