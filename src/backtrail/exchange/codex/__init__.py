"""Sessions of Codex: their format, reading them, going on with them."""
