"""Settings of the command line: from flags, the environment and two files.

A flag counts more than the environment, that more than the project's `.backtrail.toml`
(in the current folder or above it, up to the home folder), that more than the user's
`config.toml`. Each value knows where it comes from. The library itself reads none of this.

A project's file comes with the project, perhaps from a stranger. So it can set only what
does no harm: nothing that weakens the recording, and a store in the project, used once the
person has allowed that folder. What is wrong in it is a warning, and stops no verb.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from .._startup.folders import user_folder
from .._startup.frozen import NamedTuple
from ..errors import InvalidData

PROJECT_FILE = ".backtrail.toml"

_LONGEST = 64 << 10

Value = str | float | bool | tuple[str, ...] | None
Kind = Literal[
    "text", "seconds", "wait", "count", "switch", "color", "size", "root", "folders", "retention"
]


class Key(NamedTuple):
    """One setting: its kind, default, variable of the environment, and what it is for."""

    kind: Kind
    default: Value
    variable: str
    about: str
    in_project: bool = False


KEYS: dict[str, Key] = {
    "store": Key("text", None, "BACKTRAIL_STORE", "where sessions are kept", True),
    "model": Key("text", None, "BACKTRAIL_MODEL", "the model that `chat` talks to", True),
    "base_url": Key("text", None, "BACKTRAIL_BASE_URL", "where the model's server is"),
    "hooks": Key("switch", True, "BACKTRAIL_HOOKS", "whether installed hooks record"),
    "hooks_off": Key(
        "folders",
        (),
        "",
        "folders in which, and below which, installed hooks do not record; only in your own file",
    ),
    "hook_timeout": Key("seconds", 2.0, "BACKTRAIL_HOOK_TIMEOUT", "the longest a hook may take"),
    "hook_wait": Key(
        "wait",
        20.0,
        "BACKTRAIL_HOOK_WAIT",
        "seconds that the first calls of a session wait for the first import",
    ),
    "root": Key(
        "root",
        "project",
        "BACKTRAIL_ROOT",
        "what hooks, `record` and `chat` capture: the project or the cwd",
    ),
    "root_files": Key(
        "count",
        100_000,
        "BACKTRAIL_ROOT_FILES",
        "files above which a project is captured only in the cwd",
    ),
    "budget": Key("size", None, "BACKTRAIL_BUDGET", "disk space for contents of files"),
    "retention": Key(
        "retention",
        None,
        "",
        "how long unused sessions are kept, such as 90d; only in your own file",
    ),
    "collect": Key(
        "switch",
        True,
        "BACKTRAIL_COLLECT",
        "whether contents that nothing needs are removed by themselves",
    ),
    "agents_may_erase": Key(
        "switch",
        False,
        "",
        "whether agents may delete, purge, collect and remove hooks; only in your own file",
    ),
    "color": Key("color", "auto", "BACKTRAIL_COLOR", "colour on terminals: auto or never", True),
}
"""Every setting there is."""


class Setting(NamedTuple):
    """A value and where it comes from."""

    name: str
    value: Value
    origin: str


class Settings(NamedTuple):
    """All settings as they are now, and what the files say that has no effect."""

    values: dict[str, Setting]
    warnings: tuple[str, ...] = ()

    @property
    def store(self) -> str | None:
        """The URL of the store; None: the default one."""
        return self.text("store")

    @property
    def hook_timeout(self) -> float:
        """Seconds that a hook may take."""
        return self._number("hook_timeout")

    @property
    def hook_wait(self) -> float:
        """Seconds that the calls of a session wait, in all, for the first import."""
        return self._number("hook_wait")

    @property
    def root_files(self) -> int:
        """Files above which a project is captured only in the folder of the agent."""
        return int(self._number("root_files"))

    def _number(self, name: str) -> float:
        value = self.values[name].value
        assert isinstance(value, (int, float))
        return value

    def why_unrecorded(self, cwd: str | os.PathLike[str]) -> str | None:
        """Which setting keeps installed hooks from recording in a folder; None: they record."""
        switch, folders = self.values["hooks"], self.values["hooks_off"]
        if not switch.value:
            return f"`hooks` is off ({switch.origin})"
        assert isinstance(folders.value, tuple)
        here = Path(os.path.realpath(cwd)) if folders.value else Path()
        for folder in folders.value:
            if here.is_relative_to(os.path.realpath(folder)):
                return f"`hooks_off` names {folder} ({folders.origin})"
        return None

    @property
    def agents_may_erase(self) -> bool:
        """Whether an agent may run what erases its traces."""
        return bool(self.values["agents_may_erase"].value)

    def text(self, name: str) -> str | None:
        """The value of a setting that is text."""
        value = self.values[name].value
        return value if isinstance(value, str) else None

    def apply(self) -> None:
        """Hand what the library reads from the environment to it."""
        budget = self.text("budget")
        if budget is not None:
            os.environ[KEYS["budget"].variable] = budget
        if not self.values["collect"].value:
            os.environ[KEYS["collect"].variable] = "off"

    def unasked(self) -> dict[str, str]:
        """The environment for what begins by itself and removes things.

        An agent can run verbs with variables of its choice, and a tiny budget would remove what
        leads back: only a budget of the person's own file counts there.
        """
        budget = KEYS["budget"].variable
        from_file = not self.values["budget"].origin.startswith("environment")
        return {n: v for n, v in os.environ.items() if n != budget or from_file}


def load(
    flags: Mapping[str, str | None] | None = None, cwd: str | os.PathLike[str] | None = None
) -> Settings:
    """The settings that hold in a folder; `InvalidData` names what is wrong in one's own."""
    values = {name: Setting(name, key.default, "default") for name, key in KEYS.items()}
    warnings: list[str] = []
    named = os.environ.get(KEYS["store"].variable) or (flags or {}).get("store")
    for file, project in ((user_file(), False), (project_file(cwd), True)):
        if file is not None:
            values.update(_read(file, project, bool(named), warnings))
    for name, key in KEYS.items():
        given = os.environ.get(key.variable) if key.variable else None
        if given:
            origin = f"environment {key.variable}"
            values[name] = Setting(name, _from_text(name, given, origin), origin)
    for name, flag in (flags or {}).items():
        if flag is not None:
            values[name] = Setting(name, _from_text(name, flag, "flag"), f"flag --{name}")
    return Settings(values, tuple(warnings))


def size_in_bytes(text: str) -> int | None:
    """How much a size such as `20GB` is, as it is printed: a kilobyte is 1,000; None if none."""
    match = re.fullmatch(r"([0-9]+) ?([KMGTkmgt]?)[Bb]?", text.strip())
    return int(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " ") if match else None


def user_file() -> Path | None:
    """The user's file, if there is one."""
    found = user_path()
    return found if found.is_file() else None


def user_path() -> Path:
    """Where the user's file is looked for."""
    return Path(user_folder("config"), "config.toml")


def project_file(cwd: str | os.PathLike[str] | None = None) -> Path | None:
    """The project's file: in the folder or above it, but not above the home folder."""
    here = Path(os.path.realpath(cwd if cwd is not None else Path.cwd()))
    home = Path(os.path.realpath(Path.home()))
    device = here.stat().st_dev if here.exists() else None
    for folder in (here, *here.parents):
        if device is not None and folder.stat().st_dev != device:
            return None
        found = folder / PROJECT_FILE
        if found.is_file():
            return found
        if folder == home:
            return None
    return None


def _read(file: Path, project: bool, named: bool, warnings: list[str]) -> dict[str, Setting]:
    """What a file sets; `named`: the store is named by something that counts more."""
    try:
        table = _table(file)
    except InvalidData as error:
        if not project:
            raise
        warnings.append(f"{error}; it has no effect")
        return {}
    found: dict[str, Setting] = {}
    for name, value in table.items():
        if name not in KEYS:
            known = ", ".join(KEYS)
            warnings.append(f"{file}: there is no setting `{name[:80]}`; there are {known}")
            continue
        try:
            found[name] = Setting(name, _value(name, value, file, project), str(file))
        except InvalidData as error:
            if not project:
                raise
            warnings.append(f"{error}; it has no effect")
    if project and "store" in found and not named:
        _check_allowed(file, found, warnings)
    return found


def _table(file: Path) -> dict[str, object]:
    import tomllib

    try:
        with file.open("rb") as opened:
            content = opened.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise InvalidData(f"{file} is over {_LONGEST >> 10} KB, which no settings are")
        return tomllib.loads(content.decode())
    except InvalidData:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidData(f"{file} is not valid TOML: {error}") from error
    except OSError as error:
        raise InvalidData(f"{file} cannot be read: {error.strerror}") from error


def _value(name: str, value: object, file: Path, project: bool) -> Value:
    if project and not KEYS[name].in_project:
        raise InvalidData(f"{file}: `{name}` cannot be set by a project, only in {user_path()}")
    checked = _checked(name, value, str(file))
    if name == "store" and isinstance(checked, str):
        return _located(checked, file, project)
    if isinstance(checked, tuple):
        return tuple(str(file.parent / Path(folder).expanduser()) for folder in checked)
    return checked


def _check_allowed(file: Path, found: dict[str, Setting], warnings: list[str]) -> None:
    """A store that a project brings may hold anything: it is used once that is allowed."""
    from .._startup.shell import quoted
    from .allowance import is_allowed

    if not is_allowed(file.parent):
        del found["store"]
        warnings.append(
            f"{file}: the store that it names is not used, because you have not allowed it: "
            f"`backtrail config allow {quoted(str(file.parent))}`; until then sessions go "
            "to your own store"
        )


def _located(url: str, file: Path, project: bool) -> str:
    """A URL in a file, with its path taken from the folder of that file."""
    scheme, _, rest = url.partition(":")
    if project and scheme not in ("file", "sqlite"):
        raise InvalidData(
            f"{file}: a project's store is `file:DIR` or `sqlite:///PATH`, not `{url}`; "
            "others are named by --store, the environment or the user's file"
        )
    for kind, lead in (("file", ""), ("sqlite", "///")):
        if scheme == kind and rest.startswith(lead):
            path = file.parent / Path(rest[len(lead) :]).expanduser()
            if project and not Path(os.path.realpath(path)).is_relative_to(
                os.path.realpath(file.parent)
            ):
                # The project may be a stranger's, and the conversation is ours.
                raise InvalidData(
                    f"{file}: a project's store lies in the project, and `{url}` does not; "
                    "others are named by --store, the environment or the user's file"
                )
            return f"{scheme}:{lead}{path}"
    return url


def _from_text(name: str, given: str, origin: str) -> Value:
    """A value that was given as text."""
    kind = KEYS[name].kind
    if kind in ("seconds", "wait", "count"):
        try:
            number: Value = int(given) if kind == "count" else float(given)
        except ValueError:
            number = given
        return _checked(name, number, origin)
    if kind == "switch":
        if given.lower() in ("1", "on", "true", "yes"):
            return True
        if given.lower() in ("0", "off", "false", "no"):
            return False
        raise InvalidData(f"{origin}: `{name}` is on or off, not `{given}`")
    return _checked(name, given, origin)


def _checked(name: str, value: object, origin: str) -> Value:
    """A value of the right kind, else an error that names the place."""
    kind = KEYS[name].kind
    if kind == "seconds":
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
        if 0 < number < 3600:
            return float(number)
        raise InvalidData(f"{origin}: `{name}` is a number of seconds, not `{value}`")
    if kind == "wait":
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 600:
            return float(value)
        raise InvalidData(f"{origin}: `{name}` is 0 to 600 seconds, not `{value}`")
    if kind == "count":
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        raise InvalidData(f"{origin}: `{name}` is a number of files, not `{value}`")
    if kind == "switch":
        if isinstance(value, bool):
            return value
        raise InvalidData(f"{origin}: `{name}` is true or false, not `{value}`")
    if kind == "folders":
        folders = value if isinstance(value, list) else [value]
        if all(isinstance(one, str) and one and "\0" not in one for one in folders):
            return tuple(folders)
        raise InvalidData(f"{origin}: `{name}` is a list of folders, not `{value}`")
    if kind == "size":
        if size_in_bytes(str(value)) is not None and not isinstance(value, bool):
            return str(value)
        raise InvalidData(
            f"{origin}: `{name}` is a number of bytes, or such as 20GB, not `{value}`"
        )
    if kind == "retention":
        if re.fullmatch(r"[1-9][0-9]{0,4} ?[hdw]", str(value)):
            return str(value)
        raise InvalidData(f"{origin}: `{name}` is such as 12h, 30d or 8w, not `{value}`")
    if kind == "color" and value not in ("auto", "never"):
        raise InvalidData(f"{origin}: `{name}` is auto or never, not `{value}`")
    if kind == "root" and value not in ("project", "cwd"):
        raise InvalidData(f"{origin}: `{name}` is project or cwd, not `{value}`")
    if isinstance(value, str) and value:
        return value
    raise InvalidData(f"{origin}: `{name}` is text, not `{value}`")
