"""Sessions in and out: other agents' transcripts, message lists, bundles, pages.

reading.py        lines of a file that somebody else may be writing
transcripts.py    these lines in a side log, each as it was
intake.py         from lines to events, again and again, by several processes
records.py        the session's record: made, found again, kept up to date
foreign.py        taking a foreign session in, whoever's it is
claude_code*.py   Claude Code's transcripts; file_history.py: its copies of files
codex.py          Codex's rollouts
gemini.py         Gemini CLI's own record of a chat: where it went back to, a new one
lists.py          lists of messages
importing.py      what there is to import, and importing it
mirroring.py      a live transcript into the session that hooks write to
leaving.py        a native session that was left after a rewind, and goes on
native*.py        a session of ours as a new session of the agent it came from
exporting.py …    a session as a page, as text, or as a bundle
"""

from __future__ import annotations
