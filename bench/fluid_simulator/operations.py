"""One rank's part in a collective or in a transfer, from its launch to its end."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, Protocol

from fluid_simulator.groups import Group


class Lane(NamedTuple):
    """Operations that are counted together. `peer`: -1 for a collective."""

    op: str
    group: str
    peer: int


class Issuer(Protocol):
    """The rank that launched it, and that may wait for it."""

    done: defaultdict[Lane, int]
    started_of_world: int

    def resume(self, argument: None) -> None: ...


class Exchange(Protocol):
    """A collective or a transfer, in which ranks take part."""

    def arrive(self, part: Operation) -> None: ...


class Operation:
    """`issued`, `ready` and `end` are seconds: when the host launched it, when its stream came to it, when it was done.
    `entered`: before it the stream's work has to be done. `following`: what is behind it in its stream. `waiter`: who
    goes on when it is done. `number`: of its kind in its group or between its pair, from 0."""

    __slots__ = (
        "done",
        "end",
        "entered",
        "exchange",
        "following",
        "group",
        "issued",
        "lane",
        "number",
        "op",
        "peer",
        "rank",
        "ready",
        "size",
        "step",
        "waiter",
    )

    def __init__(
        self,
        rank: Issuer,
        exchange: Exchange | None,
        group: Group,
        lane: Lane,
        number: int,
        size: float,
        step: int,
        issued: float,
    ) -> None:
        self.rank, self.exchange, self.group, self.lane = rank, exchange, group, lane
        self.op, self.peer = lane.op, None if lane.peer < 0 else lane.peer
        self.number, self.size, self.step, self.issued = number, size, step, issued
        self.entered = self.end = 0.0
        self.ready: float | None = None
        self.done = False
        self.following: Operation | None = None
        self.waiter: Issuer | None = None

    def arrive(self, ready: float) -> None:
        """The stream comes to it."""
        self.ready = ready
        assert self.exchange is not None
        if self.group.role == "world":
            self.rank.started_of_world += 1
        self.exchange.arrive(self)

    def finish(self, time: float) -> None:
        """It is done: what follows in the stream begins, and who waits goes on."""
        self.end, self.done = time, True
        self.rank.done[self.lane] += 1
        if self.following is not None:
            self.following.arrive(max(self.following.entered, time))
        if self.waiter is not None:
            waiter, self.waiter = self.waiter, None
            waiter.resume(None)
