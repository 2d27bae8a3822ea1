"""The reference of the command line, made from the parsers: `python docs/reference.py`.

Prints the page `docs/reference/cli.md`, or writes it to the file that is named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from backtrail.cli.program import NAMES, overview, parser
from backtrail.cli.verbs import VERBS
from backtrail.settings import KEYS

_HEAD = """# Command line

This page is made from the parsers: `python docs/reference.py docs/reference/cli.md`.

```text
{overview}```

## For all verbs

- SESSION is an id, the unique beginning of one, a key, a title, or `latest`. Without one it is
  `latest`: the latest session of this folder, or of the nearest folder above that has one.
  Archived ones do not count. With `--yes`, and in `chat`, one of a folder above is taken only if
  that is the project which this folder is in: not the home, a file system, or what another
  repository lies in.
- POINT is the number of an event, its id or the unique beginning of that, the label of a
  checkpoint, or `@-1`, `@-2` …: your last prompt, the one before it.
- Data goes to stdout, all else to stderr. With `--json` it is one JSON document, also for
  errors; `watch` prints one a line. [The shapes](json.md) are stable.
- What cannot be undone shows first what it would do, and asks. Without a terminal it needs
  `--yes`.
- No colour in pipes, with `NO_COLOR`, `TERM=dumb` or `--no-color`.

| exit code | name in JSON | meaning |
| --- | --- | --- |
{codes}

## Settings

A flag counts more than the environment, that more than the project's `.backtrail.toml` (in this
folder or above it, up to your home), that more than your own `config.toml`.
`backtrail config show` lists each value and where it comes from. A project may set `store`, once
you [allowed](../how-to/strangers.md) it, `model` and `color`.

| setting | environment | what it is for |
| --- | --- | --- |
{settings}
"""

_MEANINGS = {
    0: "done",
    1: "something failed, or you said no",
    2: "arguments that make no sense",
    3: "no such session, point or file; or a name that fits several",
    4: "it was changed meanwhile; what is in conflict was kept",
    5: "another session or process is working with it",
    6: "stored data is damaged",
    130: "interrupted",
}


def page() -> str:
    """The whole page."""
    names = {code: f"`{name}`" for code, name in NAMES.items()}
    codes = [f"| {code} | {names.get(code, '')} | {what} |" for code, what in _MEANINGS.items()]
    settings = [
        f"| `{name}` | {_variable(key.variable)} | {key.about} |" for name, key in KEYS.items()
    ]
    parts = [
        _HEAD.format(overview=overview(), codes="\n".join(codes), settings="\n".join(settings))
    ]
    for heading, verbs in VERBS.items():
        parts.append(f"\n## {heading}\n")
        for verb in verbs:
            if verb != "hook":
                usage = parser(verb).format_help()
                parts.append(f"\n### backtrail {verb}\n\n```text\n{usage}```\n")
    return "".join(parts)


def _variable(name: str) -> str:
    return f"`{name}`" if name else "–"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the page, or write it to a file."""
    # The parser's help is as wide as the terminal; the page must not depend on one.
    os.environ["COLUMNS"] = "100"
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given:
        Path(given[0]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
