"""Sessions of Gemini: their format, reading them, going on with them."""
