"""The adapter for claude_sdk."""
