"""What the words of many rules of localisation are in numbers: `most`, `half`, `alike` and `few`. Pure."""

from __future__ import annotations

from typing import Final

MIN_COST: Final = 0.01
"""The share of the time of all steps below which nobody is accused: looking for it costs more."""

MOST: Final = 0.75
"""The share from which on something holds of most: of steps, ranks, machines, members or channels. What does not is
true of a quarter at most. Each rule that asks it is right in as many golden cases with this one as with its own."""

HALF: Final = 0.5
"""The share from which on something is more than all the rest: what explains as much of a difference is its cause."""

ALIKE: Final = 0.05
"""The share up to which two amounts of the same kind are alike, as two sizes or two speeds. Our choice: padding, last
batches, and the first and last layers of a model differ by less."""

FEW: Final = 4
"""The ranks, machines or channels of which one that stands out may move the median of what they all show."""
