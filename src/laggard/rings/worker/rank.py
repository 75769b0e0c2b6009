"""The work of one rank of a ring: it joins, measures the sweep, and exchanges data in pairs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from laggard.rings.messages import Connected, Join, Measured, Pair, Paired, Sweep
from laggard.rings.results import measured
from laggard.rings.worker.channel import Channel
from laggard.rings.worker.collectives import Exchange, is_measurable
from laggard.rings.worker.connections import connections
from laggard.rings.worker.group import Group
from laggard.rings.worker.store import make_store

_MIN_EXCHANGES: Final = 2
_MAX_EXCHANGES: Final = 1000


class Rank:
    def __init__(self, torch: Any, device: str, local_rank: int, channel: Channel, nccl_version: str = "") -> None:
        self.torch, self.nccl_version = torch, nccl_version
        self._channel = channel
        self.device = f"cuda:{local_rank}" if device == "cuda" else "cpu"
        self.local_rank = local_rank
        self._stores: list[Any] = []
        self._address = ""
        self.rank, self.world = 0, 1

    def join(self, command: Join) -> None:
        self._address, self.rank, self.world = command.address, command.rank, command.world

    def sweep(self, command: Sweep) -> Iterator[Measured | Connected]:
        """Measures each operation at each size for its share of the time. Every rank takes the same decisions, by the
        largest of all ranks' times. Sizes for which no time is left are not measured."""
        options = command.options
        group = self._group("sweep", self.rank, self.world, command.deadline_seconds)
        yield connections()
        share = options.seconds / (len(options.ops) * len(options.sizes))
        until = 1.5 * options.seconds
        spent = 0.0
        for op in options.ops:
            for size_bytes in options.sizes:
                if is_measurable(op, size_bytes, self.world) and spent < until:
                    began = time.monotonic()
                    yield self._measure(group, op, size_bytes, share)
                    spent += group.largest(time.monotonic() - began)
        group.close()

    def pair(self, command: Pair) -> Iterator[Connected | Paired]:
        """Measures an all-reduce among the members, all of which get this command. An error is the pair's, and the rank
        stays in the ring."""
        before = Connected((), ())
        try:
            place = command.members.index(self.rank)
            group = self._group(command.name, place, len(command.members), command.deadline_seconds)
            yield (before := connections())
            report = self._measure(group, "all_reduce", command.size_bytes, command.seconds)
            group.close()
        except Exception as error:
            now = connections()
            yield Connected(now.ends, tuple(sorted({*before.taken, *now.taken})))
            yield Paired(command.name, 0.0, 0, error=" ".join(str(error).split())[:300] or type(error).__name__)
            return
        seconds = report.p50 if self.device != "cpu" else report.best  # CPUs are shared with other processes
        yield Paired(command.name, seconds, report.wrong, report.iterations)

    def _group(self, name: str, place: int, size: int, seconds: float) -> Group:
        store = make_store(self.torch, self._channel, name, max(1.0, seconds))
        self._stores.append(store)
        return Group(self.torch, self.device, store, place, size, seconds, self._address)

    def _measure(self, group: Group, op: str, size_bytes: int, seconds: float) -> Measured:
        """Checks the result, which warms up as well; measures; and checks again, since faults come with load."""
        exchange = Exchange(group, op, size_bytes)
        wrong = exchange.check()
        taken = group.timed(exchange.run, _MIN_EXCHANGES)
        while (spent := group.largest(sum(taken))) < seconds and len(taken) < _MAX_EXCHANGES:
            next_part = int(len(taken) * (seconds - spent) / max(spent, 1e-9) / 2)  # halves: what follows may be slower
            if not next_part:
                break
            taken += group.timed(exchange.run, min(next_part, _MAX_EXCHANGES - len(taken)))
        wrong += exchange.check()
        return measured(op, exchange.counts.size_bytes, taken, wrong)
