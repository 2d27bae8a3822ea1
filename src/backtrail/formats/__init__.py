"""Formats: the same conversation in another spelling.

    messages.py    `convert`: a conversation from any mix of formats into one
    parts.py       the neutral shape in between: turns made of texts, media, calls, results
    openai.py      chat completions messages
    responses.py   Responses items
    anthropic.py   Messages API messages

A session stores what a provider gave, as it is. Nothing here writes: conversion happens
in the view, so the stored message stays exact and can always go back to its own provider.
"""

from __future__ import annotations
