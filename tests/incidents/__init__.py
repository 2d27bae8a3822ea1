"""What went wrong in other tools, as scenarios that any tool can be put through.

driver      what a tool must be able to do: four calls, and abilities it may have
stage       a project on the disk, the people in it, and the verdict on a tool
ours        Backtrail behind the driver
shadow_git  the usual way, snapshots in a second git repository, behind the driver
catalogue   all scenarios; the other modules hold them, by topic
"""
