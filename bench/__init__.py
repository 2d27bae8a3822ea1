"""Backtrail beside its peers and beside the physical limit, in one run.

`python -m bench` runs everything; `python -m bench append load` runs parts.

    __main__.py      the command line
    messages.py      the seeded messages that every contender gets
    environments.py  one environment for each peer, made on first use
    running.py       contenders in processes of their own, shuffled, over rounds
    goals.py         what a figure is compared with, and the verdict
    report.py        tables, and docs/performance.md
    parts/           what is measured: contenders, columns and goals of each part
    drivers/         what runs inside a contender's environment: a job in, numbers out
"""
