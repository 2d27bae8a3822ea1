"""Who changed a workspace's files, as events of a session say it.

folder      a session's workspace, opened when first needed
owed        what a recorder has found out, and its events that are not in the log yet
sought      how a process finds the call that another one began
recorder    what calls do to the files, as events; hooks, `record` and `Session` use it
shared      the same for sessions that several processes record, as hooks do
"""
