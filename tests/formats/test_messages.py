"""Conversion between the formats of providers."""

from __future__ import annotations

import base64
import copy
import json

import pytest

from backtrail.errors import InvalidData
from backtrail.events import Format, Json
from backtrail.events.calls import INTERRUPTED
from backtrail.events.messages import format_of
from backtrail.formats.messages import convert
from tests.formats.rules import check
from tests.formats.scripts import FORMATS, facts

PAIRS = [(a, b) for a in FORMATS for b in FORMATS if a != b]
Messages = list[dict[str, Json]]


def turned(messages: Messages, source: Format, to: Format) -> Messages:
    """Converted, checked against the provider's rules, and the given ones left alone."""
    before = copy.deepcopy(messages)
    out = convert([(message, source) for message in messages], to)
    assert messages == before
    json.dumps(out, allow_nan=False)
    check(to, out)
    return out


# --- one conversation in three spellings -------------------------------------------------

HI: dict[Format, Messages] = {
    "openai": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
    ],
    "responses": [
        {"type": "message", "role": "system",
         "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "hello", "annotations": []}]},
    ],
    "anthropic": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
    ],
}  # fmt: skip

PARALLEL: dict[Format, Messages] = {
    "openai": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "Looking.", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"p":1}'}},
            {"id": "b", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": "two"},
        {"role": "user", "content": "thanks"},
    ],
    "responses": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "Looking.", "annotations": []}]},
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": '{"p":1}'},
        {"type": "function_call", "call_id": "b", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "one"},
        {"type": "function_call_output", "call_id": "b", "output": "two"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "thanks"}]},
    ],
    "anthropic": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "a", "name": "read", "input": {"p": 1}},
            {"type": "tool_use", "id": "b", "name": "ls", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one"},
            {"type": "tool_result", "tool_use_id": "b", "content": "two"},
            {"type": "text", "text": "thanks"},
        ]},
    ],
}  # fmt: skip

PNG = "iVBORw0KGgo="
PDF = "data:application/pdf;base64,QQ=="
IMAGES: dict[Format, Messages] = {
    "openai": [
        {"role": "user", "content": [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
        ]},
    ],
    "responses": [
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "what is this?"},
            {"type": "input_image", "detail": "auto", "image_url": "https://x.test/a.png"},
            {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"},
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        ]},
    ],
    "anthropic": [
        {"role": "user", "content": [
            {"type": "text", "text": "what is this?"},
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            {"type": "document", "title": "a.pdf",
             "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="}},
        ]},
    ],
}  # fmt: skip

SPELLINGS = {"text": HI, "parallel calls": PARALLEL, "images and files": IMAGES}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("source,to", PAIRS)
def test_each_direction(name: str, source: Format, to: Format) -> None:
    """The same conversation comes out in the spelling of the other provider."""
    out = turned(SPELLINGS[name][source], source, to)
    if (source, to) == ("responses", "openai"):
        # How closely to look at an image is said in both, and only there.
        out = json.loads(json.dumps(out).replace(', "detail": "auto"', ""))
    assert out == SPELLINGS[name][to]


@pytest.mark.parametrize("format", FORMATS)
def test_identity(format: Format) -> None:
    """X to X gives the very messages: unknown fields, signatures, dangling calls and all."""
    odd: Messages = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}]},
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "x", "new_field": {"a": [1]}},
        {"role": "assistant", "tool_calls": [{"id": "never answered"}]},
        {"anything": None},
    ]
    out = convert([(message, format) for message in odd], format)
    assert all(given is taken for given, taken in zip(odd, out, strict=True))


def test_nothing_and_nonsense() -> None:
    """No messages are no messages; an unknown format or role is refused, not guessed."""
    assert convert([], "openai") == []
    with pytest.raises(InvalidData, match="not a format"):
        convert([], "klingon")  # type: ignore[arg-type]
    for format, to in PAIRS:
        if format != "responses":
            with pytest.raises(InvalidData, match="role"):
                convert([({"role": "narrator", "content": "x"}, format)], to)


# --- what a direction loses, and what it must not ----------------------------------------


@pytest.mark.parametrize("source,to", PAIRS)
def test_reasoning_is_dropped(source: Format, to: Format) -> None:
    """Another provider's reasoning cannot be checked, so it goes; its words stay private."""
    thoughts: dict[Format, Messages] = {
        "openai": [{"role": "assistant", "content": "yes", "reasoning_content": "secret"}],
        "responses": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret"},
            {"role": "assistant", "content": "yes"},
        ],
        "anthropic": [
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "secret", "signature": "secret"},
                {"type": "redacted_thinking", "data": "secret"},
                {"type": "text", "text": "yes"},
            ]},
        ],
    }  # fmt: skip
    start = convert([({"role": "user", "content": "is it?"}, "openai")], source)
    out = turned([*start, *thoughts[source]], source, to)
    assert "secret" not in json.dumps(out)
    assert facts(out) == [("user", "is it?"), ("assistant", "yes")]


def test_only_reasoning_leaves_no_empty_message() -> None:
    """A message of nothing but reasoning disappears, and roles still alternate."""
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}
    out = turned([{"role": "user", "content": "hi"}, thought], "anthropic", "openai")
    assert out == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("to", ["openai", "responses"])
def test_developer_stays_in_place_at_openai(to: Format) -> None:
    """OpenAI takes instructions anywhere and knows `developer`."""
    other: Format = "responses" if to == "openai" else "openai"
    reported = [*HI[other], {"role": "developer", "content": "Now in verse."}]
    out = turned(reported, other, to)
    assert [message["role"] for message in out] == ["system", "user", "assistant", "developer"]


def test_instructions_go_first_at_anthropic() -> None:
    """Every system and developer message ends up in the one that `system=` takes."""
    reported = [
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
    ]
    assert turned(reported, "openai", "anthropic") == [
        {"role": "system", "content": [
            {"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."},
        ]},
        {"role": "user", "content": "hi"},
    ]  # fmt: skip


def test_items_of_one_response_are_one_message() -> None:
    """Reasoning, words and calls of one response are one assistant message elsewhere."""
    items: Messages = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "and"}]},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]  # fmt: skip
    chat = turned(items, "responses", "openai")
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "tool"]
    blocks = turned(items, "responses", "anthropic")[1]["content"]
    assert [block["type"] for block in blocks] == ["tool_use", "text", "tool_use"]


def test_errors() -> None:
    """Only Anthropic marks an error; a silent one says at least that it is one."""
    reported: Messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "f", "input": {}},
            {"type": "tool_use", "id": "b", "name": "f", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "no file", "is_error": True},
            {"type": "tool_result", "tool_use_id": "b", "is_error": True},
        ]},
    ]  # fmt: skip
    for to in ("openai", "responses"):
        said = [fact[2] for fact in facts(turned(reported, "anthropic", to)) if fact[0] == "result"]
        assert said == ["no file", "error"]
    failed = {"role": "tool", "tool_call_id": "a", "content": "", "is_error": True}
    back = turned([*PARALLEL["openai"][:2], failed], "openai", "anthropic")[-1]["content"]
    assert back[0]["content"] == "error" and back[0]["is_error"] is True
    assert back[1]["content"] == INTERRUPTED


def test_images_in_results() -> None:
    """Chat results are text, so their images follow in a message of the user."""
    shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    reported = copy.deepcopy(PARALLEL["anthropic"])
    reported[2]["content"][0]["content"] = [{"type": "text", "text": "one"}, shown]
    reported[2]["content"][1]["content"] = [shown]
    chat = turned(reported, "anthropic", "openai")
    assert [message["role"] for message in chat] == [
        "user", "assistant", "tool", "tool", "user", "user",
    ]  # fmt: skip
    assert [block["type"] for block in chat[4]["content"]] == ["image_url", "image_url"]
    items = turned(reported, "anthropic", "responses")
    assert [block["type"] for block in items[4]["output"]] == ["input_text", "input_image"]
    assert turned(items, "responses", "anthropic") == reported


def test_custom_tools() -> None:
    """A call in free text keeps its kind between OpenAI's two, and its words at Anthropic."""
    chat: Messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls -l"}},
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "a.txt"},
    ]  # fmt: skip
    items = turned(chat, "openai", "responses")
    assert [item["type"] for item in items[1:]] == ["custom_tool_call", "custom_tool_call_output"]
    assert turned(items, "responses", "openai") == chat
    assert turned(items, "responses", "anthropic")[1]["content"][0]["input"] == {"_raw": "ls -l"}


def test_what_no_provider_shares_is_said_in_words() -> None:
    """Content without a counterpart leaves a note, so that the model knows of the gap."""
    audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    svg = {"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,AA=="}}
    ours = {"type": "file", "file": {"file_id": "file-1"}}
    text = base64.b64encode(b"words").decode()
    file = {"filename": "n.txt", "file_data": f"data:text/plain;base64,{text}"}
    notes = {"type": "file", "file": file}
    reported: Messages = [{"role": "user", "content": [audio, svg, ours, notes]}]
    blocks = turned(reported, "openai", "anthropic")[0]["content"]
    assert [block.get("text") for block in blocks[:3]] == [
        "[audio left out]", "[image left out: image/svg+xml]", "[file left out: file-1]",
    ]  # fmt: skip
    assert blocks[3]["source"] == {"type": "text", "media_type": "text/plain", "data": "words"}
    linked = {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}}
    back = turned([{"role": "user", "content": [linked]}], "anthropic", "openai")
    assert back == [{"role": "user", "content": [
        {"type": "text", "text": "[file left out: https://x.test/a.pdf]"},
    ]}]  # fmt: skip


def test_refusals() -> None:
    """OpenAI spells a refusal apart; for Anthropic it is what the assistant said."""
    chat: Messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "refusal": "No."},
    ]
    items = turned(chat, "openai", "responses")
    assert items[1]["content"] == [{"type": "refusal", "refusal": "No."}]
    assert turned(items, "responses", "openai") == chat
    assert turned(items, "responses", "anthropic")[1]["content"] == "No."


def test_hosted_tools_stay_with_their_provider() -> None:
    """What ran at the provider cannot be replayed elsewhere; the words around it can."""
    items: Messages = [
        {"role": "user", "content": "news?"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "assistant", "content": "none"},
    ]
    out = turned(items, "responses", "anthropic")
    assert facts(out) == [("user", "news?"), ("assistant", "none")]


def test_a_result_without_a_call_is_said_by_the_user() -> None:
    """Providers refuse it as a result, and nothing said is dropped."""
    reported: Messages = [{"role": "tool", "tool_call_id": "gone", "content": "42"}]
    out = turned(reported, "openai", "anthropic")
    assert facts(out) == [("user", "Result of tool call gone:"), ("user", "42")]


def test_ids_that_the_provider_refuses() -> None:
    """Odd, long and repeated ids become legal and unique, the same in call and result."""
    reported: Messages = [{"role": "user", "content": "go"}]
    for number, name in enumerate(["functions.Bash:0", "call_0", "call_0", "é" * 90]):
        function = {"name": "f", "arguments": "{}"}
        call = {"id": name, "type": "function", "function": function}
        reported.append({"role": "assistant", "content": None, "tool_calls": [call]})
        reported.append({"role": "tool", "tool_call_id": name, "content": str(number)})
    out = facts(turned(reported, "openai", "anthropic"))
    assert [fact[2] for fact in out if fact[0] == "result"] == ["0", "1", "2", "3"]
    assert [fact[1] for fact in out if fact[0] == "call"][1] == "call_0"
    turned(reported, "openai", "responses")


def test_a_conversation_that_begins_with_the_assistant() -> None:
    """Anthropic wants the user first; the word put there does not come back."""
    reported: Messages = [{"role": "assistant", "content": "Welcome."}]
    out = turned(reported, "openai", "anthropic")
    assert [message["role"] for message in out] == ["user", "assistant"]
    assert turned(out, "anthropic", "openai") == reported


def test_frameworks_and_older_spellings() -> None:
    """`human`, `ai`, calls with `args`, and the `function_call` of old are understood."""
    reported: Messages = [
        {"type": "human", "content": "go"},
        {"type": "ai", "content": "", "tool_calls": [{"id": "a", "name": "f", "args": {"x": 1}}]},
        {"type": "tool", "tool_call_id": "a", "content": "1", "status": "error"},
    ]
    out = turned(reported, "responses", "anthropic")
    assert facts(out) == [("user", "go"), ("call", "a", "f", {"x": 1}), ("result", "a", "1")]
    old: Messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    ]
    out = turned(old, "openai", "anthropic")
    assert facts(out)[1:] == [("call", "f", "f", {}), ("result", "f", "1")]


# --- mixed lists -------------------------------------------------------------------------


def test_only_foreign_messages_change() -> None:
    """A native message among foreign ones keeps every field, signatures included."""
    native = {
        "role": "assistant",
        "id": "msg_1",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"_raw": 1}, "odd": True},
        ],
    }
    asked = {"role": "user", "content": "go", "name": "ann"}
    result = {"role": "tool", "tool_call_id": "a", "content": "done"}
    out = convert([(asked, "openai"), (native, "anthropic"), (result, "openai")], "anthropic")
    assert out[0] == {"role": "user", "content": "go"}
    assert out[1] is native
    assert out[2]["content"] == [{"type": "tool_result", "tool_use_id": "a", "content": "done"}]


def test_ids_of_native_messages_stay() -> None:
    """A foreign call keeps even an odd id if a native result names it."""
    call = {"role": "assistant", "content": [
        {"type": "tool_use", "id": "x" * 90, "name": "f", "input": {}},
    ]}  # fmt: skip
    result = {"role": "tool", "tool_call_id": "x" * 90, "content": "1"}
    out = convert([(call, "anthropic"), (result, "openai")], "openai")
    assert out[0]["tool_calls"][0]["id"] == "x" * 90
    assert out[1] is result


def test_blocks_of_text_are_at_home_in_both() -> None:
    """Their owner is unknown, so neither provider loses a field of them."""
    cached = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    cited = {"type": "text", "text": "so", "citations": [{"type": "char_location"}]}
    given: Messages = [
        {"role": "system", "content": [{"type": "text", "text": "S", **cached}]},
        {"role": "user", "content": [cached]},
        {"role": "assistant", "content": [{"type": "text", "text": "hello"}, cited]},
        {"role": "user", "content": "thanks"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
    ]
    stored = [(message, format_of(message)) for message in given]
    assert convert(stored, "anthropic") == given
    assert convert(stored[:4], "openai") == given[:4]
    odd: Messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "index": 0}]},
        {"role": "assistant", "content": [{"type": "text", "text": " "}]},
        {"role": "user", "content": [{"type": "text", "text": "b"}], "name": "ann"},
    ]
    assert turned(odd, "openai", "anthropic") == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


@pytest.mark.parametrize("kind", ["server_tool_use", "web_search_tool_result", "search_result"])
def test_blocks_that_only_anthropic_has_show_the_format(kind: str) -> None:
    """Tools that the provider runs, and what they found."""
    message = {"role": "assistant", "content": [{"type": kind}, {"type": "text", "text": "x"}]}
    assert format_of(message) == "anthropic"
