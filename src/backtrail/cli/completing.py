"""`completion`: scripts for shells, made from the parsers, so that they are never behind."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass

from .call import Call
from .verbs import Command, modules, summary


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a verb: its names, whether a value follows, and what it is for."""

    names: tuple[str, ...]
    takes: bool
    about: str
    choices: tuple[str, ...] = ()


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="which shell it is for")


def _run(call: Call) -> None:
    flags = {verb: list(flags_of(verb)) for verb in modules() if verb != "hook"}
    words = {verb: words_of(verb) for verb in flags}
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[call.arguments.shell](flags, words)
    if call.out.as_json:
        call.out.data({"shell": call.arguments.shell, "script": script})
    else:
        call.out.text(script)


def flags_of(verb: str) -> Iterator[Flag]:
    """The options of a verb, as its parser has them."""
    from .running import parser

    for action in parser(verb)._actions:
        if action.option_strings:
            about = (action.help or "").replace("%%", "%")
            choices = tuple(str(choice) for choice in action.choices or ())
            yield Flag(tuple(action.option_strings), action.nargs != 0, about, choices)


def words_of(verb: str) -> list[str]:
    """The words that a verb may be followed by, such as `install`."""
    from .running import parser

    return [
        str(choice)
        for action in parser(verb)._actions
        if not action.option_strings
        for choice in action.choices or ()
    ]


def _bash(flags: dict[str, list[Flag]], words: dict[str, list[str]]) -> str:
    cases = []
    verbs = " ".join(flags)
    for verb, known in flags.items():
        options = " ".join(name for flag in known for name in flag.names)
        cases.append(f'    {verb}) names="{" ".join(words[verb])}" flags="{options}" ;;')
    return "\n".join(
        [
            '# bash completion for backtrail: eval "$(backtrail completion bash)"',
            "_backtrail() {",
            '  local names="" flags="" current="${COMP_WORDS[COMP_CWORD]}"',
            "  COMPREPLY=()",
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$current"))',
            "    return",
            "  fi",
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "    *) return ;;",
            "  esac",
            # Options only where one is begun: else they would stand in the way of files.
            '  case "$current" in -*) names="$flags" ;; esac',
            '  COMPREPLY=($(compgen -W "$names" -- "$current"))',
            "}",
            "complete -o default -F _backtrail backtrail",
        ]
    )


def _zsh(flags: dict[str, list[Flag]], words: dict[str, list[str]]) -> str:
    verbs = [f"    {_quoted(f'{verb}:{summary(verb)}')}" for verb in flags]
    cases = []
    for verb, known in flags.items():
        named = [_zsh_flag(name, flag) for flag in known for name in flag.names]
        rows = [f"        {_quoted(row)}" for row in named]
        if words[verb]:
            offered = " ".join(words[verb])
            rows.append(f"        {_quoted(f'1:what:({offered})')}")
        rows.append("        '*:file:_files'")
        body = " \\\n".join(rows)
        cases.append(f"    {verb})\n      _arguments \\\n{body} ;;")
    return "\n".join(
        [
            "#compdef backtrail",
            '# zsh completion for backtrail: eval "$(backtrail completion zsh)"',
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
    value = f":value:({' '.join(flag.choices)})" if flag.choices else ":value:_files"
    return f"{name}[{about}]{value if flag.takes else ''}"


def _fish(flags: dict[str, list[Flag]], words: dict[str, list[str]]) -> str:
    rows = ["# fish completion for backtrail: backtrail completion fish | source"]
    for verb in flags:
        rows.append(
            f"complete -c backtrail -n __fish_use_subcommand -a {verb} -d {_quoted(summary(verb))}"
        )
    for verb, known in flags.items():
        when = f"complete -c backtrail -n '__fish_seen_subcommand_from {verb}'"
        if words[verb]:
            rows.append(f"{when} -a {_quoted(' '.join(words[verb]))}")
        for flag in known:
            names = [
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in flag.names
            ]
            value = " -r" if flag.takes else ""
            offered = f" -a {_quoted(' '.join(flag.choices))}" if flag.choices else ""
            rows.append(f"{when} {' '.join(names)}{value}{offered} -d {_quoted(flag.about)}")
    return "\n".join(rows)


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
