"""Sessions of Claude Code: their format, reading them, going on with them."""
