"""Adapters for agent frameworks, each run in an environment that has the framework.

`make test-frameworks` makes the environments, and says in `BACKTRAIL_TEST_FRAMEWORK` whose
folder is to be collected; without it none is.
"""
