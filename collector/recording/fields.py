"""Fields of a recording's records, taken as what they must be. Each raises ValueError saying what it found instead."""

from __future__ import annotations

from typing import Any


def whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is not a rank or step number")
    return value


def text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    return value


def mapping(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    return value or {}


def seconds(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e12:
        raise ValueError(f"{value!r} is not a time in seconds")
    return float(value)
