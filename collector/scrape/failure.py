"""The reason why an agent gave no usable answer."""

from __future__ import annotations

from typing import NamedTuple


class FetchFailure(NamedTuple):
    """`state`: down, slow, garbage; `reason`: one line for people."""

    state: str
    reason: str
