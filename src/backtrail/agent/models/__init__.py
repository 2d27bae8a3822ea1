"""Models: one shape for a request and its answer, whichever provider answers.

base.py         Request, Delta, Reply, Model, ModelFailed, open_model
openai.py       OpenAI-compatible chat completions
anthropic.py    Anthropic's Messages API
scripted.py     answers written down before, or recorded in a session
prices.py       what tokens cost, as of a date
"""

from __future__ import annotations
