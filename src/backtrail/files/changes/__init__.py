"""Which call changed a workspace's files, as events of a session say it.

host.py      a session's workspace, opened when first needed
brackets.py  calls under way, what they did, and the events that are not in the log yet
recorder.py  what calls do to the files, as events; hooks, `record` and `Session` use it
shared.py    the same for sessions that several processes record, as hooks do
"""
