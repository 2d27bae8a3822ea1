"""What foreign agents call: hooks that make a session of what they do, and their installing.

    endpoint      one call of a hook: read, act, exit 0, within the time limit
    dialects      what each agent calls its events and tools; which tools can write
    following     an agent's session as ours: made, mirrored, ended
    grabs         calls that began before the first import was done
    baseline      the first import of a project, which no hook waits for
    processes     which process the agent is
    places, misses, notes   small files beside the store: what was missed, what to tell the agent
    jsonfiles, settings, installing, status   the agents' settings files, and what is in them
    recording     any command as a session, for what has no hooks

An agent never waits long for a hook and never hears of its troubles. A hook pays for every
import, so modules here load what they need where they need it.
"""
