"""What foreign agents call: hooks that make a session of what they do, and their installing.

    endpoint.py    one call of a hook: read, act, exit 0, within the time limit
    dialects.py    what each agent calls its events and tools; which tools can write
    fields.py      what an event says, and what the transcript that it names says of it
    identify.py    which session of ours an agent's is
    follower.py    that session for the length of one hook: mirrored, written to, ended
    first_import.py   the first import of a project, which no hook waits for
    processes.py   which process the agent is
    places.py      where hooks keep small files
    small_files.py   what was missed, what to report to the agent, calls before the first import
    jsonfiles.py, entries.py, install.py, installed.py   the agents' settings files, what is in them

An agent never waits long for a hook and never hears of its troubles. A hook pays for every
import, so modules here load what they need where they need it.
"""
