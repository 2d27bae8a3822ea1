"""The verbs that look: what people see, line by line, and the data for scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import NewEvent, Session
from tests.cli.stage import Stage, usage

# --- status ------------------------------------------------------------------------------


def test_status_reports_what_changed_and_what_to_do(worked: Stage) -> None:
    """The last turn, what others did since, and three commands."""
    (worked.project / "mine.txt").write_text("my own\n")
    assert worked.run().lines == [
        "The greeter",
        "work · tiny-1 · 2 turns · WHEN",
        "",
        "Last prompt  Clean up.  WHEN",
        "",
        "It changed 2 files, +1 −2",
        "  D  .env  +0 −1",
        "  M  app.py  +1 −1",
        "",
        "Changed since, by others 1 file, +1 −0",
        "  A  mine.txt  +1 −0",
        "",
        "  backtrail diff  see what the last turn changed",
        "  backtrail undo  take the last turn back",
        "  backtrail rewind  go back to an earlier prompt",
    ]


def test_status_as_data(worked: Stage) -> None:
    """The same, with paths and numbers."""
    (worked.project / "mine.txt").write_text("my own\n")
    ran = worked.run("status", "--json").json
    assert ran["session"]["id"] == "work"
    assert ran["prompt"]["text"] == "Clean up."
    assert [(f["path"], f["status"]) for f in ran["last_turn"]] == [
        (".env", "deleted"),
        ("app.py", "modified"),
    ]
    assert [file["path"] for file in ran["since"]] == ["mine.txt"]
    assert len(ran["next"]) == 3
    assert ran["problem"] is None


def test_status_has_what_others_did_after_a_checkpoint(worked: Stage) -> None:
    """The checkpoint says how the files are; whose they are stays so."""
    (worked.project / "mine.txt").write_text("my own\n")
    assert worked.run("checkpoint", "now").code == 0
    ran = worked.run("status", "--json").json
    assert [file["path"] for file in ran["since"]] == ["mine.txt"]


def test_status_offers_no_prompt_where_none_is_left(worked: Stage) -> None:
    """Before the first prompt there is nothing to pick."""
    with worked.session("work") as s:
        s.rewind(before=next(s.events(kinds=("user_message",))))
    ran = worked.run("status", "--json").json
    assert not [one for one in ran["next"] if "backtrail rewind" in one["command"]]


def test_status_leaves_no_trace_in_the_log(worked: Stage) -> None:
    """Looking is not an event."""
    (worked.project / "mine.txt").write_text("my own\n")
    before = worked.run("log", "--json").json
    for verb in ("status", "show", "diff", "tree", "stats", "doctor"):
        assert worked.run(verb).code == 0
    assert worked.run("log", "--json").json == before


def test_status_without_a_session_says_how_to_begin(stage: Stage) -> None:
    """Exit code 0: there is nothing wrong."""
    ran = stage.run()
    assert ran.code == 0
    assert ran.lines[0] == f"No session in {stage.project} yet."
    assert len([line for line in ran.lines if line.startswith("  backtrail ")]) == 3
    ran = stage.run("--json")
    assert ran.json["session"] is None
    assert len(ran.json["next"]) == 3


def test_status_reports_what_is_not_captured(worked: Stage) -> None:
    """A rewind never touches it, so people must know."""
    (worked.project / "node_modules").mkdir()
    (worked.project / "node_modules" / "x.js").write_text("1\n")
    ran = worked.run()
    assert "Not captured, so never touched: 1 path" in ran.lines
    assert any(line.startswith("  node_modules") for line in ran.lines)
    rows = worked.run("--json").json["not_captured"]
    assert [row["path"] for row in rows] == ["node_modules"]


@pytest.mark.parametrize(
    ("step", "first"),
    [
        ("undo", "backtrail redo --session work"),
        ("rewind", "backtrail undo --session work"),
    ],
)
def test_status_offers_the_way_back(worked: Stage, step: str, first: str) -> None:
    """After an undo the redo, after a rewind the undo."""
    with worked.session("work") as s:
        if step == "undo":
            s.undo()
        else:
            s.rewind("before the cleanup")
    ran = worked.run("--json").json
    assert ran["next"][0]["command"] == first
    # What was taken back is not what the last turn did.
    assert [file["path"] for file in ran["last_turn"]] == ["README.md"]


def test_status_works_when_the_folder_is_gone(worked: Stage) -> None:
    """From elsewhere, by the session's name; what it does not know, it says."""
    worked.project.rename(worked.folder / "moved")
    ran = worked.run("status", "work", cwd=worked.folder)
    assert ran.code == 0
    assert ran.lines[0] == "The greeter"


# --- ls ----------------------------------------------------------------------------------


@pytest.fixture
def many(worked: Stage) -> Stage:
    """Sessions here, below and elsewhere."""
    for id, folder, model, agent, branch in (
        ("below", worked.project / "sub", "big-2", "codex", "main"),
        ("other", worked.folder / "other", "tiny-1", "claude-code", "topic"),
        ("plain", worked.project, None, "claude-code", "main"),
    ):
        folder.mkdir(exist_ok=True)
        metadata = {"git_branch": branch}
        with Session.create(
            worked.url, id, cwd=folder, model=model, agent_name=agent, metadata=metadata,
            files=False,
        ) as s:  # fmt: skip
            s.append({"role": "user", "content": f"hello from\n{id}"})
    return worked


def ids(stage: Stage, *arguments: str, cwd: Path | None = None) -> list[str]:
    rows = stage.run("ls", "--json", *arguments, cwd=cwd).json["sessions"]
    return [row["id"] for row in rows]


def test_ls_lists_sessions_here(many: Stage) -> None:
    """Of this folder and below it, newest first; untitled ones by what was said."""
    assert ids(many) == ["plain", "below", "work"]
    assert many.run("ls").lines == [
        "session  changed  title  agent  turns  cost  tags  folder",
        f"plain  WHEN  hello from plain  claude-code  1  –  {many.project}",
        f"below  WHEN  hello from below  codex  1  –  {many.project}/sub",
        f"work  WHEN  The greeter  tiny-1  2  –  {many.project}",
    ]


def test_ls_filters(many: Stage) -> None:
    """By folder, model, branch, agent, tag, time and number; all must hold."""
    assert ids(many, "--all") == ["plain", "other", "below", "work"]
    assert ids(many, "--project", "sub") == ["below"]
    assert ids(many, "--model", "TINY", "-a") == ["other", "work"]
    assert ids(many, "--branch", "main") == ["plain", "below"]
    assert ids(many, "--agent", "claude-code", "--all") == ["plain", "other"]
    assert ids(many, "--all", "-n", "2") == ["plain", "other"]
    assert ids(many, "--since", "1h") == ["plain", "below", "work"]
    assert ids(many, "--until", "1h") == []
    many.run("tag", "good", "-s", "below")
    assert ids(many, "--tag", "good", "--agent", "codex") == ["below"]
    assert many.run("ls", "--since", "soon").code == 2


def test_ls_shows_pinned_first_and_hides_archived(many: Stage) -> None:
    """Both can be taken back."""
    many.run("pin", "work")
    many.run("archive", "plain")
    assert ids(many) == ["work", "below"]
    assert ids(many, "--archived") == ["work", "plain", "below"]
    many.run("pin", "work", "--undo")
    many.run("archive", "plain", "--undo")
    assert ids(many) == ["plain", "below", "work"]


def test_ls_says_what_it_does_not_show(many: Stage) -> None:
    """How many more there are; and where to look if there are none."""
    ran = many.run("ls", "-n", "1")
    assert "2 more sessions: `-n 0` shows all" in ran.err
    ran = many.run("ls", "--tag", "none")
    assert (ran.code, ran.out) == (0, "")
    assert "`backtrail ls --all`" in ran.err


def test_a_folder_without_sessions_shows_those_of_the_one_above(many: Stage) -> None:
    """As the other verbs do."""
    deep = many.project / "deep"
    deep.mkdir()
    assert ids(many, cwd=deep) == ["plain", "below", "work"]


# --- show --------------------------------------------------------------------------------


def test_show_reports_a_session_turn_by_turn(worked: Stage) -> None:
    """What was said, which tools were used, and what they did to the files."""
    assert worked.run("show").lines == [
        "The greeter",
        f"work · {worked.project} · tiny-1 · 2 turns · 60 tokens · WHEN",
        "",
        "prompt 1  WHEN",
        "> Add a readme.",
        "I will write one.",
        "  • write  README.md",
        "    written",
        "    A  README.md  +1 −0",
        "Done.",
        "  – checkpoint before the cleanup",
        "",
        "prompt 2  WHEN",
        "> Clean up.",
        "  • bash  rm .env",
        "    exit code 0",
        "    D  .env  +0 −1",
        "    M  app.py  +1 −1",
        "All clean.",
    ]


def test_show_one_turn(worked: Stage) -> None:
    """By its number, or from the end."""
    assert worked.run("show", "--turn", "2").lines[2:] == worked.run("show").lines[11:]
    assert worked.run("show", "--turn", "-1").lines == worked.run("show", "--turn", "2").lines
    ran = worked.run("show", "--turn", "3")
    assert ran.code == 3
    assert "has 2 turns, so no turn 3" in ran.err


def test_show_in_full_has_diffs_thoughts_and_long_texts(worked: Stage) -> None:
    """Without it, long texts are cut and say so."""
    thought = {"type": "thinking", "thinking": "hm, let me see", "signature": "s"}
    text = "\n".join(f"line {n}" for n in range(30))
    with worked.session("work") as s, s.turn("Explain.") as turn:
        turn.append({"role": "assistant", "content": [thought, {"type": "text", "text": text}]})
    brief = worked.run("show").lines
    full = worked.run("show", "--full").lines
    assert "… 15 more lines" in brief and "line 29" not in brief
    assert "line 29" in full and "  ~ hm, let me see" in full
    assert "  ~ hm, let me see" not in brief
    assert "    -def hello():" in full and "    +def hi():" in full


def test_show_has_a_call_once_that_message_and_hook_record(stage: Stage) -> None:
    """What a hook records of a call stands below it, whatever came in between."""
    item = {"type": "function_call", "name": "shell", "arguments": '{"command": "ls"}'}
    with stage.session("s", files=False) as s:
        s.append({"role": "user", "content": "go"})
        done = {"name": "shell", "input": {"command": "ls"}}
        for id in ("a", "b", "c"):
            s.append(item | {"call_id": id})
            if id != "b":
                s.store.append("s", [NewEvent("action", done | {"call": id})])
        s.store.append("s", [NewEvent("action", done | {"call": "b"})])
    lines = stage.run("show", "s").lines
    assert lines.count("  • shell  ls") == 3


def test_show_as_data(worked: Stage) -> None:
    """Turns with steps; diffs only in full."""
    ran = worked.run("show", "work", "--json").json
    assert ran["session"]["id"] == "work"
    assert [turn["prompt"] for turn in ran["turns"]] == [None, "Add a readme.", "Clean up."]
    step = ran["turns"][1]["steps"][1]
    assert (step["kind"], step["name"], step["text"]) == ("action", "write", "written")
    assert step["files"] == [
        {"path": "README.md", "status": "added", "insertions": 1, "deletions": 0}
    ]
    full = worked.run("show", "work", "--json", "--full").json
    assert "+# Greeter" in full["turns"][1]["steps"][1]["files"][0]["text"]


@pytest.mark.parametrize("format", ["openai", "anthropic", "responses"])
def test_show_reads_calls_of_every_provider(stage: Stage, format: str) -> None:
    """The call with what matters of its arguments, the answer below it, failures too."""
    spelled: dict[str, list[dict[str, object]]] = {
        "openai": [
            {"role": "assistant", "content": "Look.", "tool_calls": [
                {"id": "c", "type": "function",
                 "function": {"name": "bash", "arguments": '{"command": "ls -l"}'}}]},
            {"role": "tool", "tool_call_id": "c", "content": "total 0"},
        ],
        "anthropic": [
            {"role": "assistant", "content": [
                {"type": "text", "text": "Look."},
                {"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "ls -l"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "total 0",
                 "is_error": True}]},
        ],
        "responses": [
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "Look."}]},
            {"type": "function_call", "call_id": "c", "name": "bash",
             "arguments": '{"command": "ls -l"}'},
            {"type": "function_call_output", "call_id": "c", "output": "total 0"},
        ],
    }  # fmt: skip
    with stage.session("talk", files=False) as s:
        s.append({"role": "user", "content": "What is here?"})
        s.extend(spelled[format])
    assert stage.run("show").lines[3:] == [
        "prompt 1  WHEN",
        "> What is here?",
        "Look.",
        "  • bash  ls -l",
        "    total 0",
    ]
    steps = stage.run("show", "--json").json["turns"][1]["steps"]
    assert [call["name"] for step in steps for call in step.get("calls", ())] == ["bash"]
    assert [step.get("error", False) for step in steps][-1] is (format == "anthropic")


def test_show_a_subagent(worked: Stage) -> None:
    """Its log is listed, and shown on request; an unknown one is not found."""
    with worked.session("work") as s:
        said = {"message": {"role": "user", "content": "Look around."}}
        s.subagent("scout").append(said, kind="message")
    assert worked.run("show").lines[-1] == "subagents: scout (`--subagent ID` shows one)"
    assert "> Look around." in worked.run("show", "--subagent", "scout").lines
    assert worked.run("show", "--subagent", "nobody").code == 3


def test_secrets_are_hidden_on_request(worked: Stage) -> None:
    """In what people see and in the data, by `show` and by `search`."""
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    with worked.session("work") as s, s.turn(f"my token is {secret} ok") as _, s.tool("bash"):
        (worked.project / "token.txt").write_text(f"{secret}\n")
    for arguments in (
        ["show", "--full"],
        ["show", "--full", "--json"],
        ["search", "token"],
        ["search", "token", "--json"],
    ):
        assert secret in worked.run(*arguments).out
        masked = worked.run(*arguments, "--mask")
        assert masked.code == 0, masked.err
        assert secret not in masked.out and "REDACTED" in masked.out


# --- log ---------------------------------------------------------------------------------


def test_log_lists_events(worked: Stage) -> None:
    """Oldest first, each on a line; what was left behind is marked."""
    with worked.session("work") as s:
        s.undo()
    assert worked.run("log").lines == [
        "event  when  kind  what",
        "    1  WHEN  session_start",
        "    2  WHEN  user_message  Add a readme.",
        "    3  WHEN  assistant_message  I will write one.",
        "    4  WHEN  action  write · written · files changed",
        "    5  WHEN  assistant_message  Done.",
        "    6  WHEN  checkpoint  before the cleanup",
        "    7  WHEN  user_message  Clean up. (left behind)",
        "    8  WHEN  action  bash · exit code 0 · files changed (left behind)",
        "    9  WHEN  assistant_message  All clean. (left behind)",
        "   10  WHEN  session_resume  (left behind)",
        "   11  WHEN  undone  the turn of event 7 · files changed",
    ]


def test_log_limits_and_kinds(worked: Stage) -> None:
    """The newest; how many came before is reported. Data has all unless a number is given."""
    ran = worked.run("log", "-n", "2")
    assert [line.split()[0] for line in ran.lines] == ["event", "8", "9"]
    assert "7 earlier events" in ran.err
    assert len(worked.run("log", "--json").json["events"]) == 9
    assert len(worked.run("log", "--json", "-n", "3").json["events"]) == 3
    rows = worked.run("log", "--kind", "checkpoint", "--json").json["events"]
    assert [row["seq"] for row in rows] == [6]
    assert rows[0]["live"] is True


def test_log_of_a_path_names_the_calls_that_changed_it(worked: Stage) -> None:
    """In all sessions of the folder: time, call, lines and prompt."""
    with worked.session("second") as s, s.turn("Say hi.") as _, s.tool("edit") as call:
        (worked.project / "app.py").write_text("def hi():\n    print('hi')\n")
        call.result = "ok"
    assert worked.run("log", "--", "app.py").lines == [
        "when  session  event  by  change  prompt",
        "WHEN  work  8  bash  M app.py +1 −1  Clean up.",
        "WHEN  second  3  edit  M app.py +1 −1  Say hi.",
    ]
    rows = worked.run("log", "work", "--json", "--", "app.py", ".env").json["changes"]
    assert [(row["seq"], row["path"], row["status"]) for row in rows] == [
        (8, ".env", "deleted"),
        (8, "app.py", "modified"),
    ]


def test_paths_are_meant_from_where_one_is(worked: Stage) -> None:
    """Also below the session's folder, and for a folder as a whole."""
    sub = worked.project / "sub"
    sub.mkdir()
    assert worked.run("log", "--", "../app.py", cwd=sub).code == 0
    assert worked.run("log", "--", "app.py", cwd=sub).out == ""
    assert len(worked.run("log", "--json", "--", ".").json["changes"]) == 3


def test_log_of_a_path_without_changes(worked: Stage) -> None:
    """It says so; as data, an empty list."""
    ran = worked.run("log", "--", "nothing.txt")
    assert (ran.code, ran.out) == (0, "")
    assert worked.run("log", "--json", "--", "nothing.txt").json["changes"] == []
    assert worked.run("log", "work", "--", "/etc/passwd").code == 1


# --- diff --------------------------------------------------------------------------------


def test_diff_is_of_the_last_turn(worked: Stage) -> None:
    """Not of what others did since."""
    (worked.project / "mine.txt").write_text("my own\n")
    ran = worked.run("diff")
    assert ran.out.splitlines() == [
        "diff --git a/.env b/.env",
        "deleted file mode 100644",
        "--- a/.env",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        "-TOKEN=only-copy",
        "diff --git a/app.py b/app.py",
        "--- a/app.py",
        "+++ b/app.py",
        "@@ -1,2 +1,2 @@",
        "-def hello():",
        "+def hi():",
        "     print('hello')",
    ]
    assert ran.err == "2 files, +1 −2\n"


def test_diff_between_points(worked: Stage) -> None:
    """From a point to now, between two, and from the beginning."""
    (worked.project / "mine.txt").write_text("my own\n")

    def paths(*arguments: str) -> list[str]:
        return [file["path"] for file in worked.run("diff", "--json", *arguments).json["files"]]

    assert paths("@-1") == [".env", "app.py", "mine.txt"]
    assert paths("@-2", "@-1") == ["README.md"]
    assert paths("before the cleanup", "9") == [".env", "app.py"]
    assert paths("0") == [".env", "README.md", "app.py", "mine.txt"]
    assert paths("@-2", "--", "app.py") == ["app.py"]
    ran = worked.run("diff", "@-2", "@-1", "--json").json
    assert (ran["session"], ran["from"], ran["to"]) == ("work", 2, 7)
    assert worked.run("diff", "nowhere").code == 3


def test_diff_stat_has_names_and_numbers(worked: Stage) -> None:
    """And no lines, not even in the data."""
    assert worked.run("diff", "--stat").lines == ["D  .env  +0 −1", "M  app.py  +1 −1"]
    assert "text" not in worked.run("diff", "--stat", "--json").json["files"][0]


def test_diff_of_nothing_says_so(worked: Stage) -> None:
    """On stderr; stdout is empty."""
    ran = worked.run("diff", "9")
    assert (ran.code, ran.out, ran.err) == (0, "", "nothing differs\n")


def test_diff_shows_renames_modes_and_binary_files(worked: Stage) -> None:
    """Each in one line, as git does."""
    with worked.session("work") as s, s.turn("Move.") as _, s.tool("bash"):
        (worked.project / "README.md").rename(worked.project / "READ.me")
        (worked.project / "app.py").chmod(0o755)
        (worked.project / "logo.png").write_bytes(b"\0\1\2")
    assert worked.run("diff", "--stat").lines == [
        "R  README.md → READ.me",
        "M  app.py  mode 644 → 755",
        "A  logo.png",
    ]
    assert "Binary files /dev/null and b/logo.png differ" in worked.run("diff").lines


def test_diff_between_points_needs_no_folder(worked: Stage) -> None:
    """It may be gone, or on another machine; only the present is unknown then."""
    worked.project.rename(worked.folder / "moved")
    ran = worked.run("diff", "-s", "work", "--stat", cwd=worked.folder)
    assert ran.lines == ["D  .env  +0 −1", "M  app.py  +1 −1"]
    ran = worked.run("diff", "@-2", "@-1", "-s", "work", "--json", cwd=worked.folder)
    assert [file["path"] for file in ran.json["files"]] == ["README.md"]


def test_diff_where_only_some_files_are_known(worked: Stage) -> None:
    """As in an imported session: what its calls recorded, first to last; and it is said."""
    with worked.session("work") as s:
        call = s.store.find("work", next(e.id for e in s.events() if e.seq == 8))
        done = {"before": call.data["files"]["before"], "after": call.data["files"]["after"]}
        back = {"before": done["after"], "after": done["before"]}
    with worked.session("part", files=False) as s:
        s.append({"role": "user", "content": "Do."})
        for files in (done, back, done):
            event = NewEvent("action", {"name": "edit", "files": {**files, "partial": True}})
            s.store.append("part", [event])
    for arguments in ([], ["0"], ["@-1"], ["@-1", "5"]):
        ran = worked.run("diff", "-s", "part", "--stat", *arguments)
        assert ran.lines == ["D  .env  +0 −1", "M  app.py  +1 −1"], arguments
        assert "only what the calls of the session recorded is known" in ran.err
    assert worked.run("diff", "@-1", "4", "-s", "part").out == ""
    ran = worked.run("diff", "-s", "part", "--stat", "--", "app.py")
    assert ran.lines == ["M  app.py  +1 −1"]


# --- tree --------------------------------------------------------------------------------


def test_tree_draws_forks_branches_and_subagents(worked: Stage) -> None:
    """Each below what it comes from; the session that is meant is marked."""
    with worked.session("work") as s:
        s.rewind("before the cleanup")
        s.subagent("scout").append({"role": "user", "content": "Look around."})
        with s.fork("before the cleanup", session_id="plan-b", title="Plan B") as fork:
            fork.fork(session_id="plan-c", title="Plan C").close()
    assert worked.run("tree", "work").lines == [
        "The greeter  work · 1 turn · WHEN  ← here",
        "├── branch Clean up.  left at prompt 1, 2 messages",
        "├── subagent scout  1 event",
        "└── fork Plan B  plan-b from prompt 1 · 1 turn · WHEN",
        "    └── fork Plan C  plan-c from prompt 1 · 1 turn · WHEN",
    ]
    below = worked.run("tree", "plan-c", "--json").json["trees"][0]["below"]
    assert [node["kind"] for node in below] == ["branch", "subagent", "fork"]
    assert below[2]["below"][0]["id"] == "plan-c"
    assert len(worked.run("tree", "--all", "--json").json["trees"]) == 1


def test_tree_names_a_branch_by_its_own_first_prompt(stage: Stage) -> None:
    """After rewind, new turn, undo, undo; the way back is the one that the test walks itself."""
    stage.project.mkdir(exist_ok=True)
    with Session.create(stage.url, "walk") as session:
        for text in ("one", "two", "three"):
            session.append({"role": "user", "content": text})
            session.append({"role": "assistant", "content": f"{text}!"})
        session.rewind(before=4)
        session.append({"role": "user", "content": "four"})
        for step in (session.undo, session.undo, session.redo, session.undo, session.undo):
            step()
            events = {event.seq: event for event in session.events()}
            shown = stage.run("tree", "walk", "--json").json["trees"][0]["below"]
            assert shown
            for branch in shown:
                at, said = branch["head"], []
                while at > branch["left"]:
                    if events[at].kind == "user_message":
                        said.append(events[at].data["message"]["content"])
                    follows = events[at].follows
                    at = at - 1 if follows is None else follows
                assert branch["prompt"] == said[-1]


def test_status_leaves_out_what_came_and_went_in_a_turn(worked: Stage) -> None:
    """A file that one call makes and another removes is no change of the turn."""
    with worked.session("brief") as s, s.turn("Try something."):
        with s.tool("bash", {"command": "touch a b"}):
            (worked.project / "a").write_text("1\n")
            (worked.project / "b").write_text("1\n")
        with s.tool("bash", {"command": "rm a"}):
            (worked.project / "a").unlink()
    found = worked.run("status", "--json").json
    assert found["session"]["id"] == "brief"
    assert [(row["path"], row["status"]) for row in found["last_turn"]] == [("b", "added")]


# --- search ------------------------------------------------------------------------------


def test_search_finds_words_here(many: Stage) -> None:
    """With the surroundings, grouped by session; everywhere on request."""
    ran = many.run("search", "hello")
    assert ran.lines == [
        f"hello from plain  plain  {many.project}",
        "  user, WHEN  hello from plain",
        "    backtrail show plain --turn 1",
        "",
        f"hello from below  below  {many.project}/sub",
        "  user, WHEN  hello from below",
        "    backtrail show below --turn 1",
    ]
    assert "2 hits here" in ran.err
    rows = many.run("search", "hello", "--all", "--json").json["hits"]
    assert {row["session_id"] for row in rows} == {"plain", "below", "other"}
    rows = many.run("search", "hello", "--session", "other", "--json").json["hits"]
    assert [row["session_id"] for row in rows] == ["other"]


def test_search_finds_what_a_fork_elsewhere_shares(many: Stage) -> None:
    """A fork into another folder takes nothing away from the search here."""
    before = many.run("search", "hello", "--json").json["hits"]
    assert before
    assert many.run("fork", "--into", str(many.folder / "plan-b")).code == 0
    after = many.run("search", "hello", "--json").json["hits"]
    assert {(hit["session_id"], hit["seq"]) for hit in after} == {
        (hit["session_id"], hit["seq"]) for hit in before
    }


def test_search_goes_on_until_there_are_enough_from_here(many: Stage) -> None:
    """Many hits of another folder do not hide those of this one."""
    with Session.open(many.url, "other", files=False) as s:
        s.extend([{"role": "assistant", "content": f"hello {n}"} for n in range(200)])
    rows = many.run("search", "hello", "-n", "2", "--json").json["hits"]
    assert [row["session_id"] for row in rows] == ["plain", "below"]


def test_search_for_nothing(worked: Stage) -> None:
    """No hits is no error; no words is one."""
    assert worked.run("search", "nonexistent").code == 0
    assert worked.run("search", "nonexistent", "--json").json["hits"] == []
    assert worked.run("search", "--", "!!").code == 2
    assert worked.run("search").code == 2


# --- stats -------------------------------------------------------------------------------


def test_stats_add_up(many: Stage) -> None:
    """By model and by project; cost only where one was stated."""
    with Session.open(many.url, "below", files=False) as s:
        s.append({"role": "assistant", "content": "x"}, usage=usage(100, 50), cost_usd=0.5)
    ran = many.run("stats", "--json").json
    assert (ran["sessions"], ran["turns"]) == (4, 5)
    assert ran["tokens"] == {"input_tokens": 150, "output_tokens": 60}
    assert ran["cost_usd"] == 0.5
    models = {row["name"]: row for row in ran["by_model"]}
    assert models["tiny-1"]["sessions"] == 2
    assert models["big-2"]["cost_usd"] == 0.5
    assert models["tiny-1"]["cost_usd"] is None
    assert all(ran["disk"][part] > 0 for part in ("sessions", "contents", "index"))
    assert sum(row["turns"] for row in ran["by_project"]) == 5
    assert many.run("stats", "--project", "sub", "--json").json["sessions"] == 1
    shown = many.run("stats").lines
    assert "big-2  1  1  2  100  50  $0.50" in shown
    assert "all  4  5  9  150  60  $0.50" in shown


# --- a checkpoint of an earlier point ----------------------------------------------------


def test_a_checkpoint_of_an_earlier_point_is_not_now(stage: Stage) -> None:
    """Its files are those of then; what changed since the last event is compared with that."""
    (stage.project / "a").write_text("a\n")
    assert stage.run("record", "--", "sh", "-c", "echo b > b").code == 0
    assert stage.run("checkpoint", "early", "--at", "2").code == 0
    assert stage.run("--json").json["since"] == []
    assert "+b" in stage.run("diff").out
    # Neither is it what the session takes for the state it left.
    assert stage.run("checkpoint", "late").code == 0
    kinds = [event["kind"] for event in stage.run("log", "--json").json["events"]]
    assert "files_changed" not in kinds
