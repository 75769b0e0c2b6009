"""A rank that took no stacks of itself, as a rank beside it saw it: its process, and where that stands in the kernel.
A small JSON document. Standard library only."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from laggard.stacks.kernel_side import KernelSide, checked
from laggard.stacks.sampled import SampledError, number_of, text_of

SUFFIX: Final = ".kernel"
KEY: Final = "laggard_kernel"
MAX_BYTES: Final = 16 * 1024


class Unanswered(NamedTuple):
    """`at`: Unix time; `silent_seconds`: for how long none of its threads had given a sign of life; `side`: of its main
    thread."""

    job_id: str
    rank: int
    node: str
    pid: int
    at: float
    silent_seconds: float
    side: KernelSide


def encode(seen: Unanswered) -> bytes:
    return json.dumps({KEY: 1, **seen._asdict(), "side": seen.side._asdict()}).encode("ascii")


def decode(text: bytes) -> Unanswered:
    """The document in `text`. Raises SampledError."""
    try:
        value = json.loads(text[:MAX_BYTES])
        if value[KEY] != 1:
            raise ValueError
        side = value["side"]
        functions = tuple(text_of(each) for each in side["functions"])
        return Unanswered(
            job_id=text_of(value["job_id"]),
            rank=number_of(value["rank"]),
            node=text_of(value["node"]),
            pid=number_of(value["pid"]),
            at=float(value["at"]),
            silent_seconds=float(value["silent_seconds"]),
            side=checked(
                text_of(side["state"]),
                text_of(side["waits_in"]),
                int(side["call"]),
                functions,
                number_of(side["tracer"]),
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise SampledError("no document of a rank without stacks that this release reads") from None
