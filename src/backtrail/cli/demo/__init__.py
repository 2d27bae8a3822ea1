"""The tour: `backtrail demo`, or `make demo`. Under a minute, no network, no keys.

    stage.py    a temporary folder with a project and a store; commands, shown and run
    acting.py   a scripted agent that works on the project, and a writer that is killed
    tour.py     what is shown, in which order, and what it has to prove

Commands are printed as a person types them, and what is printed is what runs, in a process of
its own. So the output is that of the real thing.
"""

from .tour import take_tour

__all__ = ["take_tour"]
