"""Sessions in and out: other agents' transcripts, message lists, bundles, pages.

shapes.py          what JSON from outside holds, where it has the shape that is expected
jsonlines.py       lines of a file that another program may be writing
transcript.py      these lines in a side log, each as it was
intake.py          from lines to events, again and again, by several processes
growing_log.py     the main log while lines become events of it
foreign_record.py  the session's record: made, found again, kept up to date
foreign.py         taking a foreign session in: an import, a mirror, a session that was left
claude_code/, codex/, gemini/  one agent each: its format, its sessions, its files
hooks/             what the hooks of other agents call, and how they are installed
command.py         any command as one call
lists.py           lists of messages
native*.py         a session of ours as a new session of the agent it came from
bundle/            a session in one file, for another machine
export/            a session as a page or as text; exporting.py writes it
copy.py            sessions with their files from one store to another
"""

from __future__ import annotations
