"""The work of one rank of a ring: it joins, measures the sweep, and exchanges data in pairs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from laggard.probes.active.matmul import multiply
from laggard.probes.active.measuring.devices import ComputeDevice
from laggard.rings.judge import measured
from laggard.rings.messages import Computed, Connected, Join, Measured, Pair, Paired, Sweep
from laggard.rings.options import Counts, counts
from laggard.rings.worker.group import Channel, Group, connections, make_store

# The collectives of a sweep, with inputs whose results are known exactly.
#
# Element i of rank r's part is base(i) + r mod 16, with base(i) = (31 i) mod 257: small integers, so that every sum is
# exact in 32-bit floats in any order, up to 60,000 ranks. 257 is prime: a result that is right but lies in the wrong
# place, as after an exchange of chunks, is wrong almost everywhere.

_RANK_MODULUS: Final = 16
_BASE_MODULUS: Final = 257
_BASE_STEP: Final = 31


class Exchange:
    """One operation at one size: its buffers, how to run it, and how many elements of its result are wrong."""

    def __init__(self, group: Group, op: str, size_bytes: int) -> None:
        self.group, self.op = group, op
        self.counts = counts(op, size_bytes, group.size)
        self._input = self._zeros(self.counts.sent)
        self._output = self._input if op == "all_reduce" else self._zeros(self.counts.received)

    def run(self) -> None:
        """Zeros stay zeros, however often they are added up in place."""
        if self.op == "all_reduce":
            self.group.all_reduce(self._input)
        elif self.op == "reduce_scatter":
            self.group.reduce_scatter(self._output, self._input)
        else:
            self.group.all_gather(self._output, self._input)

    def check(self) -> int:
        """Runs it once with known inputs, and returns how many elements of the result are wrong. Leaves zeros."""
        self._input.copy_(self._values())
        if self._output is not self._input:
            self._output.fill_(-1.0)
        self.run()
        self.group.finish()
        wrong = int((self._output != self._expected()).sum())
        self._input.zero_()
        self._output.zero_()
        return wrong

    def _values(self) -> Any:
        place = self.group.place
        first = place * self.counts.sent if self.op == "all_gather" else 0
        return self._base(first, self.counts.sent) + place % _RANK_MODULUS

    def _expected(self) -> Any:
        size, (_, received) = self.group.size, self.counts
        if self.op == "all_gather":
            ranks = self.group.torch.arange(size, device=self.group.device) % _RANK_MODULUS
            return self._base(0, received) + ranks.repeat_interleave(self.counts.sent)
        first = self.group.place * received if self.op == "reduce_scatter" else 0
        return self._base(first, received) * size + sum(rank % _RANK_MODULUS for rank in range(size))

    def _base(self, first: int, number: int) -> Any:
        torch = self.group.torch
        places = torch.arange(first, first + number, dtype=torch.int64, device=self.group.device)
        return (places.remainder_(_BASE_MODULUS).mul_(_BASE_STEP).remainder_(_BASE_MODULUS)).to(torch.float32)

    def _zeros(self, number: int) -> Any:
        return self.group.torch.zeros(number, dtype=self.group.torch.float32, device=self.group.device)


def is_measurable(op: str, size_bytes: int, ranks: int) -> bool:
    """Whether every rank has a part of a message of this size."""
    return min(counts(op, size_bytes, ranks)) > 0


__all__ = ["Counts", "Exchange", "is_measurable"]


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


def compute(rank: Rank, seconds: float) -> Computed:
    """Measures for `seconds`, after as long a warm-up. An error of CUDA is told, and is none of the ring's own."""
    device = ComputeDevice(f"rank {rank.rank}", "", rank.device)
    try:
        with rank.torch.inference_mode():
            result = multiply(rank.torch, device, seconds)
    except RuntimeError as error:
        return Computed(0.0, 0, 0, error=" ".join(str(error).split())[:300])
    return Computed(result.per_second, result.checked, result.wrong)
