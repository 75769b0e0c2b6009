"""A moment on both of the collector's clocks."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    wall: float  # Unix seconds
    monotonic: float
