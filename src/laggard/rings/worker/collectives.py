"""The collectives of a sweep, with inputs whose results are known exactly.

Element i of rank r's part is base(i) + r mod 16, with base(i) = (31 i) mod 257: small integers, so that every sum is
exact in 32-bit floats in any order, up to 60,000 ranks. 257 is prime: a result that is right but lies in the wrong
place, as after an exchange of chunks, is wrong almost everywhere.
"""

from __future__ import annotations

from typing import Any, Final

from laggard.rings.bandwidth import Counts, counts
from laggard.rings.worker.group import Group

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
