"""The JSON documents that laggard's parts exchange, and how any of them is encoded and decoded: strict about types, and
with the place of what is wrong. The documents' types stand in `ranks` and `nodes`, which a gate that exchanges neither
does not import."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class WireError(ValueError):
    """A document is not JSON, or not of the expected type. The text names the place in it."""


def require(condition: bool, problem: str) -> None:
    """Raises WireError with `problem` if the condition does not hold."""
    if not condition:
        raise WireError(problem)


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def decode(data: bytes, document_type: type[T]) -> T:
    """Raises WireError where `data` is not JSON or not a `document_type`."""
    try:
        return msgspec.json.decode(data, type=document_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(str(error)) from None
    except RecursionError:
        raise WireError("it is nested too deeply") from None
