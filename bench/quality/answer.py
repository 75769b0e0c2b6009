"""What a tool answers: the culprits that it names."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Named(NamedTuple):
    """One culprit that a tool names. `ranks` are the ranks that it accuses, `nodes` the machines (both ends, of a
    link); one of them is enough. `recoverable` is the share of the step time that fixing it would save, None: it does
    not say."""

    kind: str  # slow_compute, slow_host, slow_input, slow_link, hung, dead; slow: something of it
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    phase: str | None = None
    recoverable: float | None = None


Tool = Callable[[Path], list[Named]]
"""A tool: from a directory of recordings (a case's `trace`) to the culprits that it names; none: nobody is slow. An
exception is no answer."""
