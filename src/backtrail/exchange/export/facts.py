"""What stands at the head of an export. Pure."""

from __future__ import annotations

from ...events import SessionInfo


def facts(info: SessionInfo) -> list[tuple[str, str]]:
    """Names and values, without what is not known."""
    found: list[tuple[str, str | None]] = [
        ("Session", info.id),
        ("Began", info.created_at),
        ("Last change", info.updated_at),
        ("Folder", info.cwd),
        ("Project", info.root if info.root != info.cwd else None),
        ("Agent", info.agent_name),
        ("Model", info.model),
        ("Messages", f"{info.message_count} in {info.turn_count} turns"),
        ("Tokens", _tokens(info)),
        ("Cost", None if info.cost_usd is None else f"${info.cost_usd:.4f}"),
        ("Fork of", info.parent_id),
        ("Tags", ", ".join(info.tags)),
    ]
    return [(name, value) for name, value in found if value]


def _tokens(info: SessionInfo) -> str:
    names = ("input_tokens", "output_tokens")
    known = [(name, info.usage[name]) for name in names if name in info.usage]
    return ", ".join(f"{count:,} {name.partition('_')[0]}" for name, count in known)
