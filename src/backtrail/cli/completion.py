"""`completion`: scripts for shells, made from the parsers, so that they are never behind."""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Iterator

from .._startup.frozen import dataclass
from .call import Call
from .verbs import Command, modules, summary

SESSIONS = "backtrail ls 2>/dev/null | tail -n +2 | cut -d ' ' -f 1"
"""The line that lists the sessions of this folder, for a shell to ask when it must."""


@dataclass(frozen=True, slots=True)
class Words:
    """What may stand at a place: some words, or the name of a session."""

    choices: tuple[str, ...] = ()
    is_session: bool = False

    def __bool__(self) -> bool:
        return bool(self.choices) or self.is_session


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a verb: its names, whether a value follows and which, what it is for."""

    names: tuple[str, ...]
    takes: bool
    about: str
    value: Words


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="which shell it is for")


def _run(call: Call) -> None:
    flags = {verb: list(flags_of(verb)) for verb in modules() if verb != "hook"}
    places = {verb: places_of(verb) for verb in flags}
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[call.arguments.shell](flags, places)
    if call.out.as_json:
        call.out.data({"shell": call.arguments.shell, "script": script})
    else:
        call.out.text(script)


def flags_of(verb: str) -> Iterator[Flag]:
    """The options of a verb, as its parser has them."""
    from .program import parser

    for action in parser(verb)._actions:
        if action.option_strings:
            about = (action.help or "").replace("%%", "%")
            yield Flag(tuple(action.option_strings), action.nargs != 0, about, _words(action))


def places_of(verb: str) -> list[Words]:
    """What a verb may be followed by, place by place, such as `install` and then an agent."""
    from .program import parser

    return [_words(action) for action in parser(verb)._actions if not action.option_strings]


def _words(action: Action) -> Words:
    choices = tuple(str(choice) for choice in action.choices or ())
    return Words(choices, action.metavar == "SESSION" or action.dest == "resume")


# --- bash --------------------------------------------------------------------------------


def _bash(flags: dict[str, list[Flag]], places: dict[str, list[Words]]) -> str:
    verbs = " ".join(flags)
    options = [
        f'    {verb}) flags="{" ".join(name for flag in known for name in flag.names)}" ;;'
        for verb, known in flags.items()
    ]
    values = [
        f'    "{verb} {name}") names="{_bash_words(flag.value)}" ;;'
        for verb, known in flags.items()
        for flag in known
        for name in flag.names
        if flag.takes and flag.value
    ]
    words = [
        f'    "{verb} {at}") names="{_bash_words(offered)}" ;;'
        for verb, known in places.items()
        for at, offered in enumerate(known)
        if offered
    ]
    return "\n".join(
        [
            '# bash completion for backtrail: eval "$(backtrail completion bash)"',
            f"_backtrail_sessions() {{ {SESSIONS}; }}",
            "_backtrail() {",
            '  local names="" flags="" word at=0 verb="${COMP_WORDS[1]}"',
            '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            "  COMPREPLY=()",
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$current"))',
            "    return",
            "  fi",
            '  case "$verb" in',
            *options,
            "    *) return ;;",
            "  esac",
            '  for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do',
            '    case "$word" in -*) ;; *) at=$((at + 1)) ;; esac',
            "  done",
            '  case "$verb $at" in',
            *words,
            "  esac",
            # Options only where one is begun: else they would stand in the way of files.
            '  case "$current" in -*) names="$flags" ;; esac',
            '  case "$verb $before" in',
            *values,
            "  esac",
            '  COMPREPLY=($(compgen -W "$names" -- "$current"))',
            "}",
            "complete -o default -F _backtrail backtrail",
        ]
    )


def _bash_words(words: Words) -> str:
    return "latest $(_backtrail_sessions)" if words.is_session else " ".join(words.choices)


# --- zsh ---------------------------------------------------------------------------------


def _zsh(flags: dict[str, list[Flag]], places: dict[str, list[Words]]) -> str:
    verbs = [f"    {_quoted(f'{verb}:{summary(verb)}')}" for verb in flags]
    cases = []
    for verb, known in flags.items():
        rows = [_zsh_flag(name, flag) for flag in known for name in flag.names]
        rows += [f"{at}:{_zsh_words(words)}" for at, words in enumerate(places[verb], 1) if words]
        body = " \\\n".join(f"        {_quoted(row)}" for row in [*rows, "*:file:_files"])
        cases.append(f"    {verb})\n      _arguments \\\n{body} ;;")
    return "\n".join(
        [
            "#compdef backtrail",
            '# zsh completion for backtrail: eval "$(backtrail completion zsh)"',
            "_backtrail_sessions() {",
            f'  compadd latest ${{(f)"$({SESSIONS})"}}',
            "}",
            "_backtrail() {",
            "  local -a verbs",
            "  verbs=(",
            *verbs,
            "  )",
            "  if (( CURRENT == 2 )); then",
            "    _describe verb verbs",
            "    return",
            "  fi",
            "  local verb=$words[2]",
            "  shift words",
            "  (( CURRENT-- ))",
            "  case $verb in",
            *cases,
            "  esac",
            "}",
            "compdef _backtrail backtrail",
        ]
    )


def _zsh_flag(name: str, flag: Flag) -> str:
    about = flag.about.replace("[", "(").replace("]", ")").replace(":", ",")
    return f"{name}[{about}]{f':{_zsh_words(flag.value)}' if flag.takes else ''}"


def _zsh_words(words: Words) -> str:
    if words.is_session:
        return "session:_backtrail_sessions"
    return f"value:({' '.join(words.choices)})" if words.choices else "value:_files"


# --- fish --------------------------------------------------------------------------------


def _fish(flags: dict[str, list[Flag]], places: dict[str, list[Words]]) -> str:
    rows = ["# fish completion for backtrail: backtrail completion fish | source"]
    for verb in flags:
        rows.append(
            f"complete -c backtrail -n __fish_use_subcommand -a {verb} -d {_quoted(summary(verb))}"
        )
    for verb, known in flags.items():
        when = f"complete -c backtrail -n '__fish_seen_subcommand_from {verb}'"
        rows += [f"{when} -a {_quoted(_fish_words(words))}" for words in places[verb] if words]
        for flag in known:
            names = [
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in flag.names
            ]
            value = " -r" if flag.takes else ""
            offered = f" -a {_quoted(_fish_words(flag.value))}" if flag.value else ""
            rows.append(f"{when} {' '.join(names)}{value}{offered} -d {_quoted(flag.about)}")
    return "\n".join(rows)


def _fish_words(words: Words) -> str:
    return f"latest ({SESSIONS})" if words.is_session else " ".join(words.choices)


def _quoted(text: str) -> str:
    """A text in single quotes, as all three shells read it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "'\\''") + "'"


COMMANDS = {
    "completion": Command(
        _options,
        _run,
        """
        eval "$(backtrail completion bash)"
        eval "$(backtrail completion zsh)"
        backtrail completion fish | source
        """,
        about="Put the line into the start-up file of your shell.",
    )
}
