"""Conversions of a recording's fields. Each raises ValueError that says what it found where the type is wrong."""

from __future__ import annotations

from typing import Any


def as_number(value: Any) -> int:
    """A rank or step number."""
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is not a rank or step number")
    return value


def as_text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    return value


def as_mapping(value: Any) -> dict[str, Any]:
    """A JSON object; null is an empty one."""
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    return value or {}


def as_seconds(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e12:
        raise ValueError(f"{value!r} is not a time in seconds")
    return float(value)
