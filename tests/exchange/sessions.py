"""Sessions to be exported: one that is always the same, and one that means harm."""

from __future__ import annotations

from backtrail import NewEvent, SessionInfo, Store
from backtrail.events import Json
from backtrail.files.contents.blobs import Reference
from backtrail.files.depot import Depot
from backtrail.files.trees import Entry, digest_of, encode_tree

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
KEY = "sk-ant-api03-" + "ab12" * 10


def ts(number: int) -> str:
    """A time for the event of this number."""
    return f"2026-03-04T05:{number // 60:02d}:{number % 60:02d}.000Z"


def tree_of(depot: Depot, **files: str) -> str:
    """A stored tree of files."""
    contents = {name: text.encode() for name, text in files.items()}
    tree = {
        name.replace("_", ".").encode(): Entry("file", 0o644, len(data), digest_of(data))
        for name, data in contents.items()
    }
    blob = encode_tree(tree)
    root = digest_of(blob)
    stored = [(digest_of(data), data) for data in (*contents.values(), blob)]
    depot.blobs.write(stored, [Reference("golden", "s", root)])
    return root.hex()


def golden(store: Store, depot: Depot) -> str:
    """A session with everything an export shows; always the same bytes."""
    first = tree_of(depot, app_py="print('one')\n", notes_md="hello\n")
    second = tree_of(depot, app_py="print('two')\nprint('three')\n")
    call = {"name": "edit", "input": {"path": "app.py", "old": "one", "new": "two"}}
    task = {"name": "task", "arguments": '{"prompt": "look around"}'}
    events: list[tuple[str, dict[str, Json]]] = [
        ("session_start", {"info": {}}),
        ("system_message", _said("system", "Be careful.") | {"pinned": True}),
        ("user_message", _said("user", f"Fix `app.py`, please.\n\n```sh\nexport KEY={KEY}\n```")),
        (
            "assistant_message",
            _said(
                "assistant",
                [
                    {"type": "thinking", "thinking": "One edit will do.", "signature": "c2ln"},
                    {"type": "text", "text": "I change it & look."},
                    {"type": "tool_use", "id": "t1", **call},
                ],
            ),
        ),
        (
            "tool_result",
            _said("user", [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}])
            | {"name": "edit", "files": {"before": first, "after": second}},
        ),
        ("checkpoint", {"at": 5, "label": "edited", "metadata": {}}),
        ("user_message", _said("user", [{"type": "text", "text": "And this?"}, _image()])),
        (
            "assistant_message",
            {
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "t2", "type": "function", "function": task}],
                },
                "format": "openai",
            },
        ),
        (
            "tool_result",
            {"message": {"role": "tool", "tool_call_id": "t2", "content": "# Found\n```\nx\n```"}},
        ),
        ("action", {"name": "bash", "input": {"command": "make"}, "result": "no", "error": True}),
        ("files_changed", {"files": {"missed": "the disk is full"}}),
        ("assistant_message", _said("assistant", "It is a **pixel** < 2.")),
        ("turn_end", {"turn": 7, "reason": "max_turns", "error": "20 turns"}),
        ("my.kind", {"n": 1}),
        ("user_message", _said("user", "Never mind.")),
    ]
    main = [NewEvent(kind, data, id=f"e{n}", ts=ts(n)) for n, (kind, data) in enumerate(events, 1)]
    undone = {"of": 15, "kind": "user_message", "events_dropped": 1}
    main.append(NewEvent("undone", undone, id="e16", ts=ts(16), follows=14))
    side = [
        NewEvent("start", {"prompt": "look", "description": "Look around", "call": "t2"}),
        NewEvent("message", {"message": {"role": "user", "content": "look around"}}),
        NewEvent("message", {"message": {"role": "assistant", "content": "There is a pixel."}}),
        NewEvent("result", {"ok": False, "error": "too slow"}),
    ]
    side = [NewEvent(e.kind, e.data, id=f"a{n}", ts=ts(20 + n)) for n, e in enumerate(side, 1)]
    info = SessionInfo(
        id="golden",
        title="Fix app.py & more",
        model="some-model",
        agent_name="built-in",
        created_at=ts(0),
        tags=["demo", "x"],
    )
    store.adopt(info, {"messages": main, "subagents/a1": side})
    return info.id


def _said(role: str, content: Json) -> dict[str, Json]:
    return {"message": {"role": role, "content": content}, "format": "anthropic"}


def _image() -> dict[str, Json]:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    return {"type": "image", "source": source}


HARM = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style></pre></details></title></textarea>--></article>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<iframe src=//evil.example></iframe><link rel=stylesheet href=//evil.example>",
    "javascript:alert(1)",
    "[click](javascript:alert(1)) ![x](http://evil.example/x.png)",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x1b[5n\x9b31m",
    "\u202egnp.exe\u2066\u200f",
    "a\x00b\x08\x7f\x85\r\n\ufeff",
    "```\n</details>\n````\n<b>\n~~~",
    "``` `\n<script>alert(1)</script>",
    "a ` b\n` <script>alert(1)</script> `",
    "\\` <script>alert(1)</script> `",
    "long " * 20_000,
]


def harmful(store: Store) -> str:
    """A session with something harmful wherever text can stand."""
    events: list[NewEvent] = []
    for harm in HARM:
        events += [
            NewEvent("user_message", _said("user", harm)),
            NewEvent("assistant_message", _said("assistant", _blocks(harm))),
            NewEvent("tool_result", _said("user", [_result(harm)])),
            NewEvent("tool_result", {"message": {"role": "tool", "tool_call_id": harm}}),
            NewEvent("action", {"name": harm, "input": {harm[:200]: harm}, "result": harm}),
            NewEvent("checkpoint", {"at": 1, "label": harm, "metadata": {}}),
            NewEvent("turn_end", {"reason": harm, "error": harm}),
            NewEvent("session_end", {"reason": harm}),
            NewEvent("compaction", {"summary": {"role": "user", "content": harm}, "until": 1}),
            NewEvent("odd", {harm[:200]: harm}),
            NewEvent("files_changed", {"files": {"missed": harm, "lost": [harm]}}),
            NewEvent("user_message", {"message": {"role": harm, "type": harm, "content": 7}}),
            NewEvent("user_message", {"message": harm}),
        ]
    side = [
        NewEvent("start", {"prompt": HARM[0], "description": HARM[3], "call": HARM[1]}),
        *(NewEvent("message", {"message": {"role": "user", "content": harm}}) for harm in HARM),
        NewEvent("result", {"ok": False, "error": HARM[0]}),
    ]
    info = SessionInfo(id="harm", title=HARM[1], model=HARM[3], agent_name=HARM[4], tags=["<b>"])
    store.adopt(info, {"messages": events, "subagents/a1": side})
    return info.id


def _result(harm: str) -> dict[str, Json]:
    return {"type": "tool_result", "tool_use_id": harm, "content": harm, "is_error": True}


def _blocks(harm: str) -> list[Json]:
    return [
        {"type": "thinking", "thinking": harm},
        {"type": "text", "text": harm},
        {"type": "tool_use", "id": harm, "name": harm, "input": {"x": harm}},
        {"type": harm, "x": harm},
        {"type": "image", "source": {"type": "base64", "media_type": harm, "data": harm}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": harm}},
        {"type": "image", "source": {**_image()["source"], "media_type": "image/svg+xml"}},
        {"type": "image_url", "image_url": {"url": harm}},
        {"type": "image_url", "image_url": {"url": f"data:text/html;base64,{harm}"}},
        {"type": "image_url", "image_url": {"url": "http://evil.example/x.png"}},
        {"type": "document", "title": harm, "source": {"type": "text", "data": harm}},
        {"type": "input_file", "filename": harm},
        harm,
        7,
        None,
        [harm],
    ]  # fmt: skip
