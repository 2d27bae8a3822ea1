"""The built-in agent: a loop over a model and tools.

models/    how a model is asked, at OpenAI-compatible servers, at Anthropic, or from a script
"""

from __future__ import annotations
