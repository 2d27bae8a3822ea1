"""Sessions in and out: other agents' transcripts, message lists, bundles, pages.

jsonlines.py    lines of a file that another program may be writing
transcript.py   these lines in a side log, each as it was
intake.py       from lines to events, again and again, by several processes
records.py      the session's record: made, found again, kept up to date
foreign.py      taking a foreign session in, whichever agent wrote it
claude_code/, codex/, gemini/   one agent each: its format, its sessions, its files
hooks/          what the hooks of other agents call, and how they are installed
record.py       any command as one call
lists.py        lists of messages
importing.py    what there is to import, and importing it
mirror.py       a live transcript into the session that hooks write to
leaving.py      a native session that was left after a rewind, and goes on
native*.py      a session of ours as a new session of the agent it came from
bundle/         a session in one file, for another machine
export/         a session as a page or as text; exporting.py writes it
copy.py         sessions with their files from one store to another
"""

from __future__ import annotations
