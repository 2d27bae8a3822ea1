"""The conversation: its log, its forks, and that it goes back together with the files."""

from __future__ import annotations

import time

from .driver import Driver
from .stage import Stage


def _log(stage: Stage, *words: str) -> None:
    """A conversation in a text file, and the tool stopped."""
    stage.driver.write_text_log()
    stage.start("a")
    for word in words:
        stage.driver.say(word)
    stage.driver.stop()


def _goes_on(stage: Stage, *words: str) -> None:
    """The tool starts again, knows these words, and takes another."""
    stage.driver.start(stage.root)
    stage.expect(stage.driver.said() == [*words], f"it knows {stage.driver.said()}")
    stage.driver.say("later")
    stage.again()
    stage.expect(stage.driver.said() == [*words, "later"], "what was said next is lost")


def torn_log_tail(stage: Stage) -> None:
    """The last line was cut in the middle: resume was blank, and the next line was lost too."""
    _log(stage, "one", "two", "three")
    path = stage.driver.log_file()
    path.write_bytes(path.read_bytes()[:-20])
    _goes_on(stage, "one", "two")


def nul_block_in_the_log(stage: Stage) -> None:
    """A crash left a block of zeros at the end of the log: it could not be read at all."""
    _log(stage, "one", "two")
    path = stage.driver.log_file()
    path.write_bytes(path.read_bytes() + bytes(4096))
    _goes_on(stage, "one", "two")


def bad_line_in_the_log(stage: Stage) -> None:
    """One bad line in the middle, and all that came after it was gone."""
    _log(stage, "one", "two", "three")
    path = stage.driver.log_file()
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"two"' in line)
    lines[at] = lines[at][:30] + b"#" + lines[at][31:]
    path.write_bytes(b"".join(lines))
    stage.driver.start(stage.root)
    said = stage.driver.said()
    stage.expect(said[0] == "one" and said[-1] == "three", f"it knows {said}")


def u2028_in_a_message(stage: Stage) -> None:
    """A message with a line separator of Unicode split its line in two."""
    _log(stage, "one\u2028two\u2029three\u0085four")
    _goes_on(stage, "one\u2028two\u2029three\u0085four")


def newline_and_nul_in_a_message(stage: Stage) -> None:
    """A message with line breaks and control characters broke the log."""
    _log(stage, 'one\ntwo\r\nthree\0"}\n{"')
    _goes_on(stage, 'one\ntwo\r\nthree\0"}\n{"')


def log_does_not_list_every_file(stage: Stage) -> None:
    """The list of all untracked files went into the log with each turn: four gigabytes."""
    stage.driver.write_text_log()
    for number in range(800):
        stage.write(f"untracked/file-number-{number}.txt", "x")
    stage.start()
    stage.driver.say("one")
    size = stage.driver.log_file().stat().st_size
    for number in range(5):
        with stage.agent():
            stage.write("a", f"{number}\n")
        stage.driver.say("more")
    grown = stage.driver.log_file().stat().st_size - size
    stage.expect(grown < 20_000, f"five small turns took {grown} bytes of log")


def streamed_answer_is_stored_once(stage: Stage) -> None:
    """Each part of an answer was stored with all before it: 34 gigabytes."""
    stage.driver.write_text_log()
    stage.start("a")
    stage.driver.say("one")
    size = stage.driver.log_file().stat().st_size
    stage.driver.stream(["word " for _ in range(2000)])
    grown = stage.driver.log_file().stat().st_size - size
    stage.expect(grown < 20_000, f"an answer of 10,000 bytes took {grown} bytes of log")


def long_session_resumes_at_once(stage: Stage) -> None:
    """A picker read every log to the end, and a long session could not be opened."""
    stage.driver.write_text_log()
    stage.start("a")
    for number in range(1500):
        stage.driver.say(f"{number} " + "x" * 1000)
    begun = time.monotonic()
    stage.again()
    listed = stage.driver.sessions()
    took = time.monotonic() - begun
    stage.expect(len(listed) == 1 and took < 3, f"it takes {took:.1f} s")


# --- forks -------------------------------------------------------------------------------


def _forked(stage: Stage) -> Driver:
    stage.start("a")
    stage.driver.say("one")
    return stage.driver.fork()


def fork_leaves_its_parent_alone(stage: Stage) -> None:
    """What was said in a fork overwrote the session it came from."""
    fork = _forked(stage)
    fork.say("in the fork")
    stage.driver.say("in the parent")
    said, forked = stage.driver.said(), fork.said()
    fork.stop()
    stage.expect(said == ["one", "in the parent"], f"the parent says {said}")
    stage.expect(forked == ["one", "in the fork"], f"the fork says {forked}")


def fork_does_not_copy_history(stage: Stage) -> None:
    """Every fork copied the whole history: hundreds of gigabytes of copies."""
    stage.start("a")
    for number in range(300):
        stage.driver.say(f"{number} " + "x" * 2000)
    size = stage.driver.store_size()
    for _ in range(5):
        stage.driver.fork().stop()
    grown = stage.driver.store_size() - size
    stage.expect(grown < 400_000, f"five forks of 600 kB took {grown} bytes")


def rewound_messages_do_not_leak_into_a_fork(stage: Stage) -> None:
    """What had been taken back was there again in a fork."""
    stage.start("a")
    stage.driver.say("one")
    token = stage.checkpoint()
    stage.driver.say("taken back")
    stage.restore(token)
    stage.driver.say("two")
    fork = stage.driver.fork()
    said = fork.said()
    fork.stop()
    stage.expect(said == ["one", "two"], f"the fork says {said}")


def fork_finds_its_parents_checkpoints(stage: Stage) -> None:
    """A fork could not go back to a checkpoint made before it."""
    stage.start("a")
    stage.driver.say("one")
    token = stage.checkpoint()
    stage.driver.say("two")
    fork = stage.driver.fork()
    with fork.call():
        stage.write("a", "fork\n")
    fork.restore(token)
    said = fork.said()
    fork.stop()
    stage.expect(said == ["one"], f"the fork says {said}")
    stage.expect_file("a", "a\n")


def fork_spares_what_its_parent_did(stage: Stage) -> None:
    """Going back in a fork took back files the parent had changed since."""
    stage.start("a", "b")
    stage.driver.say("one")
    token = stage.checkpoint()
    fork = stage.driver.fork()
    with stage.agent():
        stage.write("a", "parent\n")
    with fork.call():
        stage.write("b", "fork\n")
    fork.restore(token)
    fork.stop()
    stage.expect_files({"a": "parent\n", "b": "b\n"})


# --- together with the files -------------------------------------------------------------


def conversation_and_files_go_back_together(stage: Stage) -> None:
    """Files went back and the model still believed in its edits, or the reverse."""
    stage.start("a")
    stage.driver.say("one")
    token = stage.checkpoint()
    stage.driver.say("two")
    with stage.agent():
        stage.write("a", "agent\n")
    stage.restore(token)
    stage.expect(stage.driver.said() == ["one"], f"it says {stage.driver.said()}")
    stage.expect_file("a", "a\n")
    stage.driver.undo()
    stage.expect(stage.driver.said() == ["one", "two"], f"it says {stage.driver.said()}")
    stage.expect_file("a", "agent\n")


def what_is_derived_goes_back_too(stage: Stage) -> None:
    """Messages went back, but turns and open calls were counted as before."""
    stage.start("a")
    stage.driver.say("one")
    token = stage.checkpoint()
    before = stage.driver.derived()
    stage.driver.say("two")
    stage.driver.ask_for_a_tool()
    stage.expect(stage.driver.derived() != before, "nothing is derived")
    stage.restore(token)
    stage.expect(stage.driver.derived() == before, f"still {stage.driver.derived()}")


def conversation_goes_back_without_files(stage: Stage) -> None:
    """To take back what was said, one had to lose what was done."""
    stage.start("a")
    stage.driver.say("one")
    token = stage.checkpoint()
    stage.driver.say("two")
    with stage.agent():
        stage.write("a", "agent\n")
    stage.driver.restore_talk(token)
    stage.expect(stage.driver.said() == ["one"], f"it says {stage.driver.said()}")
    stage.expect_file("a", "agent\n")


def files_go_back_without_conversation(stage: Stage) -> None:
    """To take back what was done, one had to lose what was said."""
    stage.start("a")
    stage.driver.say("one")
    token = stage.checkpoint()
    stage.driver.say("two")
    with stage.agent():
        stage.write("a", "agent\n")
    stage.driver.restore_files(token)
    stage.expect(stage.driver.said() == ["one", "two"], f"it says {stage.driver.said()}")
    stage.expect_file("a", "a\n")


def message_sent_again_keeps_human_edits(stage: Stage) -> None:
    """Sending a message again silently took back what a person had edited meanwhile."""
    stage.start("a", "b")
    stage.driver.say("change a")
    with stage.agent():
        stage.write("a", "agent\n")
    stage.write("b", "person\n")
    stage.driver.say_again()
    stage.expect(stage.driver.said() == ["change a"], f"it says {stage.driver.said()}")
    stage.expect_files({"a": "a\n", "b": "person\n"})
