"""With `--mask` no verb shows a key, wherever in a session it stands."""

from __future__ import annotations

import pytest

from tests.cli.stage import Stage

KEY = "ghp_" + "aB3dE6gH9j" * 3 + "kL2mN5"
"""A key as GitHub makes them."""


@pytest.fixture
def leaky(stage: Stage) -> Stage:
    """A session with a key in all that people write."""
    with stage.session("work", title=f"deploy the long and winding road by {KEY}") as s:
        with s.turn(f"use the words of {KEY} {'x ' * 40}") as turn:
            with s.tool("bash", {"command": f"curl {KEY}"}) as call:
                (stage.project / "made").write_text(f"{KEY}\n")
                call.result = f"sent {KEY}"
            turn.append({"role": "assistant", "content": f"I used {KEY}"})
        s.checkpoint(f"with {KEY}")
    return stage


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "--full"),
        ("show", "--full", "--json"),
        ("search", "use"),
        ("search", "words", "--json"),
        ("search", KEY, "--json"),
        ("export", "--markdown", "-o", "-"),
        ("export", "--html", "-o", "-"),
        ("export", "--jsonl", "-o", "-"),
    ],
    ids=" ".join,
)
def test_no_key_is_shown(leaky: Stage, arguments: tuple[str, ...]) -> None:
    """Not even the beginning of one that was cut."""
    ran = leaky.run(*arguments, "--mask")
    assert ran.code == 0, ran.err
    assert "ghp_" not in ran.out
