"""The adapter for langgraph."""
