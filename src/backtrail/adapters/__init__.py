"""Sessions of agent frameworks on a Backtrail store: one module and one extra for each framework.

Each module imports its framework's interface and nothing else of it, and is imported by name:
nothing here costs anything where no framework is used.
"""
