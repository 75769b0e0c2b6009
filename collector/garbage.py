"""How often Python looks for garbage that refers to itself, of which a collector makes next to none."""

from __future__ import annotations

import gc
from typing import Final

COLLECTIONS: Final = (700, 10, 100)
"""The thresholds of gc.set_threshold(): Python's own, but that all objects are looked at after a hundred collections of
the younger ones, and not after ten and a quarter of new ones. Each round replaces what is held of every rank, so that
all objects of 4,096 nodes were looked at three times a round, for about 0.4 s each. At most 700 * 10 * 100 objects more
than went come between two times."""


def look_rarely() -> None:
    gc.set_threshold(*COLLECTIONS)
