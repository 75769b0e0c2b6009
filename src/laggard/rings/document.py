"""The document that `laggard ring` makes (`laggard.ring/1`)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from laggard.model import Finding, Verdict

RING_SCHEMA: Final = "laggard.ring/1"


class RingResult(msgspec.Struct, frozen=True):
    """One operation at one size. Times are means over the ranks of what each rank saw; `wrong` counts the wrong
    elements of all ranks' results."""

    op: str
    size_bytes: int
    time_seconds: float
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float
    wrong: int
    iterations: int
    min_seconds: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    max_seconds: float


class RingNode(msgspec.Struct, frozen=True):
    """A node of the ring, by its number. `compute_per_second`: its slowest device's rate in matrix multiplications;
    None: not measured."""

    number: int
    node: str
    first_rank: int
    ranks: int
    model: str
    compute_per_second: float | None = None


class PairResult(msgspec.Struct, frozen=True):
    """The best all-reduce between two nodes, of all `times` that they were paired; None: each failed."""

    nodes: tuple[int, int]
    times: int
    time_seconds: float | None
    busbw_bytes_per_second: float | None
    wrong: int


class Pairs(msgspec.Struct, frozen=True):
    """The results of measuring in pairs. A link of a slow node is not judged by itself."""

    size_bytes: int
    rounds: int
    links: int
    links_measured: int
    slow_nodes: tuple[int, ...]
    slow_links: tuple[tuple[int, int], ...]
    slow_compute: tuple[int, ...]
    matrix: tuple[PairResult, ...]


class Swap(msgspec.Struct, frozen=True):
    """The best all-reduce of two nodes, by number, of which `first` had the first place and `second` the second one, of
    all `times` that they were measured so; None: each failed."""

    first: int
    second: int
    times: int
    time_seconds: float | None
    busbw_bytes_per_second: float | None


class Suspect(msgspec.Struct, frozen=True):
    """The judgement of the node that was suspected. `outcome`: confirmed, acquitted or unknown. `ratio`: the rate of
    its exchanges over that of its peers among themselves, where it is best; None: not measured. `compute_ratio`: the
    same of computing, with the peers' median. `swaps`: the places in which it and its peers were measured."""

    number: int
    node: str
    outcome: str
    why: str
    ratio: float | None = None
    compute_ratio: float | None = None
    swaps: tuple[Swap, ...] = ()


class Accused(msgspec.Struct, frozen=True):
    """A node that findings accuse, by its number. `findings`: their places in the ring's; one about a link accuses
    both of its nodes."""

    node: int
    findings: tuple[int, ...]


class Ring(msgspec.Struct, frozen=True):
    verdict: Verdict
    world_size: int
    transport: dict[str, Any]
    nodes: tuple[RingNode, ...]
    results: tuple[RingResult, ...]
    findings: tuple[Finding, ...]
    unknown: str = ""
    """The parts that could not be measured or judged, and why."""
    pairs: Pairs | None = None
    elapsed_seconds: float = 0.0
    accused: tuple[Accused, ...] = ()
    absent: tuple[str, ...] = ()
    """The nodes without which a gang measured, with who of them was refused."""
    left: tuple[str, ...] = ()
    """The nodes that went before the end with nothing wrong with them, and why: a job came."""
    suspect: Suspect | None = None
    """The judgement of the node that `--suspect` names."""
    authenticated: bool = True
    """False: its nodes had no token, so that anybody who reached node 0 could have taken part."""
    schema: str = RING_SCHEMA
