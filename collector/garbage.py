"""How often Python looks for garbage that refers to itself, of which a collector makes next to none."""

from __future__ import annotations

import gc
from typing import Final

COLLECTIONS: Final = (10_000, 10, 8)
"""The thresholds of gc.set_threshold(). Each round replaces what is held of every rank: by Python's own numbers the
young objects are looked at a hundred times a round, the tenth part of which dies soon after, and all objects of 4,096
nodes three times, for about 0.4 s each. At most 10,000 * 10 * 8 objects more than went come between two looks at
all."""


def look_rarely() -> None:
    gc.set_threshold(*COLLECTIONS)
