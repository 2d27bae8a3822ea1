"""Files: what a workspace looks like, who changed it, and how it goes back.

names, trees, ignore     words: paths, directories as blobs, what is not captured
blobs, sqlite_blobs      contents by their digest; what relies on them
index, trail, scan, capture   from a directory to a tree digest, reading what changed
brackets, catalogue, attribution   who changed what between two scans
plan, conflicts          what a restore would do, path by path; pure
beneath, restore, journal   doing it, so that a crash or a race loses nothing
workspace, depot         one watched directory; where a store keeps all this
differences, textdiff    what differs between two trees, for people
collect                  garbage, budget, and the floor of free space
"""
