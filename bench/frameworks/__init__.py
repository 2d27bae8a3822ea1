"""Adapters beside the stores that frameworks bring, each in the environment of its framework.

`.frameworks/NAME/bin/python -m bench.frameworks.NAME` prints one row a line: ours, theirs, ratio.
"""
