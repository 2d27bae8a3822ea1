"""The frame of the command line: verbs, exit codes, pipes, terminals."""

from __future__ import annotations

import importlib
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import backtrail
from backtrail.cli.program import code_of, parser
from backtrail.cli.verbs import VERBS, Usage, command, modules, summary
from backtrail.errors import (
    AlreadyExists,
    BacktrailError,
    Conflict,
    Damaged,
    NotFound,
    SessionBusy,
    StoreFailed,
)
from tests.cli.stage import CODE, ESCAPE, Stage

LOOKING = ["status", "ls", "show", "log", "diff", "tree", "stats", "doctor", "verify", "config"]


def test_help_and_version_answer_on_stdout(stage: Stage) -> None:
    """Every verb is in the help, with a line that says what it is for."""
    ran = stage.run("--help")
    assert (ran.code, ran.err) == (0, "")
    for verb in modules():
        assert f"  {verb:<12}{summary(verb)}\n" in ran.out
    assert stage.run("help").out == stage.run("-h").out == ran.out
    assert stage.run("--version").out.strip() == backtrail.__version__


def test_help_is_light(stage: Stage) -> None:
    """It loads neither the database nor what prints tables."""
    heavy = ("msgspec", "apsw", "rich", "platformdirs", "tomllib", "anyio")
    code = (
        "import sys; from backtrail.cli import main; main([sys.argv[1]])\n"
        f"print([n for n in {heavy!r} if n in sys.modules])"
    )
    for flag in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("verb", sorted(modules()))
def test_every_verb_is_there_and_has_examples(verb: str) -> None:
    """Its help can be printed, and each example is one that its parser takes."""
    if verb == "hook":
        # Called by agents, not by people: its module takes its arguments itself.
        assert callable(importlib.import_module("backtrail.cli.hook").endpoint)
        return
    found = command(verb)
    assert "examples:" in parser(verb).format_help()
    lines = [line.strip() for line in found.examples.strip().splitlines()]
    for line in filter(None, lines):
        # Behind two spaces stands what it does.
        pipe = line.split("  ")[0].split(" < ")[0].split(" | ")
        plain = next((part for part in pipe if "backtrail" in part), line)
        words = shlex.split(plain.replace('"$(', "").replace(')"', ""))
        assert "backtrail" in words, line
        given = words[words.index("backtrail") + 1 :]
        if given[:1] == [verb]:
            given = given[1:]
        else:
            assert verb == "status", line
        if found.rest and "--" in given:
            given = given[: given.index("--")]
        parser(verb).parse_args(given)


def test_the_headings_are_those_that_people_look_for() -> None:
    """Each verb stands under one of them, once."""
    assert list(VERBS) == ["See", "Go back", "Share", "Agents", "Keep house"]
    assert len(modules()) == sum(len(part) for part in VERBS.values())


def test_an_unknown_verb_is_a_usage_error_that_helps(stage: Stage) -> None:
    """The nearest verb is named; with --json the error is data."""
    ran = stage.run("verfy")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean `verify`?" in ran.err
    ran = stage.run("verfy", "--json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "usage"


def test_a_wrong_option_is_a_usage_error(stage: Stage) -> None:
    """On stderr with the usage line, and as data with --json."""
    ran = stage.run("ls", "--nonsense")
    assert (ran.code, ran.out) == (2, "")
    assert "usage: backtrail ls" in ran.err
    assert stage.run("ls", "--nonsense", "--json").json["error"]["code"] == "usage"


def test_options_may_come_before_the_verb(worked: Stage) -> None:
    """Also one that takes a value; without a verb it is the status."""
    assert worked.run("--json", "ls").json == worked.run("ls", "--json").json
    assert worked.run("--store", worked.url, "ls").lines == worked.run("ls").lines
    assert worked.run("--json").json["session"]["id"] == "work"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreFailed("x"), 1),
        (AlreadyExists("x"), 1),
        (Usage("x"), 2),
        (NotFound("x"), 3),
        (Conflict("x"), 4),
        (SessionBusy("x"), 5),
        (Damaged("x"), 6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_have_exit_codes(error: BacktrailError, code: int) -> None:
    """Scripts see by the code what to do."""
    assert code_of(error) == code


def test_not_found_is_three_in_words_and_data(stage: Stage) -> None:
    """The message says what to do next."""
    ran = stage.run("show", "nothing")
    assert (ran.code, ran.out) == (3, "")
    assert "`nothing`" in ran.err and "backtrail ls --all" in ran.err
    ran = stage.run("show", "nothing", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "not_found")


def test_a_store_that_cannot_be_opened_is_one(stage: Stage) -> None:
    """With the reason; nothing is printed on stdout."""
    ran = stage.run("ls", "--store", "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert "`nowhere` is not the URL of a store" in ran.err


@pytest.mark.parametrize("verb", LOOKING)
def test_a_pipe_gets_no_escape_codes(worked: Stage, verb: str) -> None:
    """Whatever the terminal is called, and also if colour is asked for by others."""
    ran = worked.run(verb, TERM="xterm-256color", FORCE_COLOR="1", CLICOLOR_FORCE="1")
    assert ran.code == 0, ran.err
    assert ESCAPE not in ran.out + ran.err


@pytest.mark.parametrize("verb", [*LOOKING, "gc"])
def test_json_is_one_document(worked: Stage, verb: str) -> None:
    """And nothing else stands on stdout."""
    ran = worked.run(verb, "--json")
    assert ran.code == 0, ran.err
    assert isinstance(ran.json, dict)
    assert ran.out.count("\n") == 1


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["people", "json"])
def test_a_closed_pipe_is_no_error_to_look_at(worked: Stage, more: list[str]) -> None:
    """`| head` ends the run without a traceback."""
    with worked.session("work") as s:
        for _ in range(50):
            s.extend([{"role": "assistant", "content": "word " * 200}] * 100)
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "log", "-n", "0", *more],
        cwd=worked.project, env=worked.environment(), stdout=write, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        os.close(write)
        os.read(read, 10)
        os.close(read)
        assert running.stderr is not None
        assert running.stderr.read() == b""
        running.wait()
    assert running.returncode == 1


def test_ctrl_c_is_130(worked: Stage) -> None:
    """One word on stderr, no traceback."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "watch"],
        cwd=worked.project, env=worked.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None and running.stderr is not None
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        assert "Traceback" not in running.stderr.read()
    assert running.returncode == 130


def on_terminal(
    stage: Stage, *arguments: str, answer: str = "", code: int = 0, **environment: str
) -> str:
    """What a terminal gets to see, if a person answers a question."""
    main, side = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        cwd=stage.project, env=stage.environment(**environment), stdin=side, stdout=side,
        stderr=side,
    )  # fmt: skip
    os.close(side)
    seen = b""
    while True:
        try:
            more = os.read(main, 4096)
        except OSError:
            # Linux reports the end of a terminal by an error.
            break
        if not more:
            break
        seen += more
        if answer and b"[y/N]" in seen:
            os.write(main, answer.encode())
            answer = ""
    os.close(main)
    assert running.wait() == code, seen
    return seen.decode()


@pytest.mark.parametrize("verb", ["status", "ls", "show", "diff"])
def test_a_terminal_gets_colour_unless_it_is_not_wanted(worked: Stage, verb: str) -> None:
    """`NO_COLOR`, a dumb terminal, the option and the setting each turn it off."""
    assert ESCAPE in on_terminal(worked, verb, TERM="xterm-256color")
    assert ESCAPE not in on_terminal(worked, verb, TERM="xterm-256color", NO_COLOR="1")
    assert ESCAPE not in on_terminal(worked, verb, TERM="dumb")
    assert ESCAPE not in on_terminal(worked, verb, "--no-color", TERM="xterm-256color")
    assert ESCAPE not in on_terminal(worked, verb, TERM="xterm-256color", BACKTRAIL_COLOR="never")


def test_a_table_fits_the_terminal(worked: Stage) -> None:
    """What is too long is cut with an ellipsis there, and whole in a pipe."""
    title = "a title that goes on and on, longer than the window is"
    worked.run("rename", title)
    shown = on_terminal(worked, "ls", TERM="xterm", COLUMNS="60", NO_COLOR="1")
    assert "…" in shown and all(len(line.rstrip()) <= 60 for line in shown.splitlines())
    assert title in worked.run("ls", COLUMNS="60").out


def test_a_destructive_verb_asks_on_a_terminal(worked: Stage) -> None:
    """Only a yes is a yes."""
    seen = on_terminal(worked, "delete", "work", answer="n\n", code=1)
    assert "Delete 1 session? [y/N]" in seen and "nothing was deleted" in seen
    assert worked.run("show", "work").code == 0
    assert "deleted 1 session" in on_terminal(worked, "delete", "work", answer="y\n")
    assert worked.run("show", "work").code == 3


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m \u202egnp.exe \u2066 \r\x00 end"


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["ls"], ["show", "--full"], ["log"], ["diff"], ["tree"], ["search", "end"]],
    ids=lambda words: words[0],
)
def test_hostile_text_is_shown_and_never_sent(stage: Stage, arguments: list[str]) -> None:
    """Escape sequences, control and bidi characters of a log or a file reach no terminal."""
    with stage.session("evil", title="evil") as s, s.turn(f"prompt {HOSTILE}") as turn:
        turn.append({"role": "assistant", "content": f"answer {HOSTILE}\n" + "x" * 100_000})
        with s.tool("bash", {"command": HOSTILE}) as call:
            (stage.project / "\x1b[31mred.txt").write_text(f"line {HOSTILE}\n")
            call.result = HOSTILE
    seen = on_terminal(stage, *arguments, TERM="xterm-256color", NO_COLOR="1")
    for text in (seen, stage.run(*arguments).out, stage.run(*arguments, "--json").out):
        assert not set(text) & set("\x1b\x07\x9b\x00\u202e\u2066"), arguments
    assert max(map(len, seen.splitlines())) < 5000


def test_a_destructive_verb_needs_yes_without_a_terminal(worked: Stage) -> None:
    """It says so, shows what it would have done, and does nothing."""
    for arguments in (["delete", "work"], ["purge", "work"]):
        ran = worked.run(*arguments)
        assert ran.code == 2
        assert "`--yes`" in ran.err
        assert worked.run(*arguments, "--json").json["error"]["code"] == "usage"
    assert worked.run("show", "work").code == 0


def test_the_page_of_the_reference_is_made_from_the_parsers() -> None:
    """`python docs/reference.py docs/reference/cli.md` writes it anew."""
    docs = Path(__file__).parents[2] / "docs"
    script = str(docs / "reference.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (docs / "reference" / "cli.md").read_text("utf-8") == done.stdout


@pytest.mark.parametrize("scheme", ["sqlite:///", "file:"])
def test_a_slip_in_the_name_of_a_store_makes_none(stage: Stage, scheme: str) -> None:
    """Only a verb that begins a session makes the store that it is given."""
    place = stage.folder / "slip"
    ran = stage.run("ls", "--all", "--store", f"{scheme}{place}")
    assert (ran.code, ran.out) == (3, "")
    assert f"there is no store at {place}" in ran.err
    assert not place.exists()
    assert stage.run("record", "--store", f"{scheme}{place}", "--", "true").code == 0
    assert place.exists()
