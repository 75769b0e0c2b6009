"""A true reduce-scatter of gradients for DeepSpeed's ZeRO stages 1 and 2, where LAGGARD_REDUCE_SCATTER asks for it.

DeepSpeed all-reduces a bucket of gradients, of which each rank keeps the slices that it owns. Here a rank receives its
slices only, with the same sums. A bucket that few ranks own is left to DeepSpeed (see `scatters`).

NCCL has a reduce_scatter_tensor. With gloo each rank sends the others their slices (all_to_all_single) and adds up what
it receives, in the order in which gloo's ring all-reduce adds: the sums are equal bit by bit. NCCL chooses its order
itself; with two ranks any order gives the same bits.
"""

from __future__ import annotations

import datetime
import inspect
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

log = logging.getLogger("laggard")

KNOWN_VERSIONS: Final = ("0.19.8",)
_REPLACED: Final = "allreduce_and_copy_with_multiple_ranks"
_PARAMETERS: Final = (
    "small_bucket",
    "communication_data_type",
    "log",
    "divide",
    "process_group",
    "bucket_ranks",
    "output_bucket",
)
_AGREEMENT_TIMEOUT: Final = datetime.timedelta(minutes=2)
"""The time for which ranks wait for each other's agreement. Ranks come to their first step at different times: a model
is read from storage."""
_SEGMENT_BYTES: Final = 1 << 20
"""The segment of gloo/allreduce.h: AllreduceOptions::kMaxSegmentSize, and two segments a rank at least."""


def replace(engine: Any, number: int) -> None:
    """Replaces the engine's averaging of gradients, if all its ranks can; else says why not in one line, and all ranks
    train as DeepSpeed is shipped. `number`: the engine's, the same on all ranks."""
    optimizer = engine.optimizer
    problem = _problem_of(optimizer)
    group = getattr(optimizer, "dp_process_group", None) or dist.group.WORLD
    problem = _agreed(group, f"{number}/able", problem)
    if not problem and dist.get_backend(group) == "gloo":
        equal = "" if _adds_as_gloo(group) else "this torch's gloo adds in another order"
        problem = _agreed(group, f"{number}/equal", equal)
    if problem:
        log.warning("laggard: no reduce-scatter, DeepSpeed all-reduces as before: %s", problem)
        return
    setattr(optimizer, _REPLACED, _Averaging(optimizer, getattr(optimizer, _REPLACED)))
    log.info("laggard: gradients are reduce-scattered")


class Slices(NamedTuple):
    """A bucket's slices by their owners: rank r of the group owns `of_rank[r]`, (first element, count) each."""

    elements: int
    of_rank: tuple[tuple[tuple[int, int], ...], ...]

    def counts(self) -> list[int]:
        return [sum(count for _, count in own) for own in self.of_rank]


def slices_of(counts: Sequence[int], owners: Sequence[int], ranks: int) -> Slices:
    """The slices of a bucket in which its tensors lie, flattened one after the other, by the rank that owns each."""
    of_rank: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    first = 0
    for count, owner in zip(counts, owners, strict=True):
        of_rank[owner].append((first, count))
        first += count
    return Slices(first, tuple(map(tuple, of_rank)))


def scatters(slices: Slices) -> bool:
    """Whether a reduce-scatter moves less over the busiest link. A rank of N receives N - 1 times the largest share; in
    a ring all-reduce it receives 2 (N - 1) / N of the bucket (Patarasuk and Yuan, 2009)."""
    return max(slices.counts()) * len(slices.of_rank) < 2 * slices.elements


def first_adders(elements: int, element_bytes: int, ranks: int) -> list[tuple[int, int, int]]:
    """(first element, end, rank): gloo's ring adds the ranks' values of these elements beginning with that rank's, and
    goes down from it. From gloo/allreduce.cc, ring(); segments of rank g's go around from g - 1 to g."""
    total = elements * element_bytes
    largest = element_bytes * max(1, _SEGMENT_BYTES // element_bytes)
    segments = _up(max(-(-total // largest), 2 * ranks), ranks)
    length = _up(-(-total // segments), element_bytes) // element_bytes
    of_each = segments // ranks * length
    return [
        (rank * of_each, min((rank + 1) * of_each, elements), (rank - 1) % ranks)
        for rank in range(ranks)
        if rank * of_each < elements
    ]


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class _Averaging:
    """The stand-in for a ZeRO optimizer's allreduce_and_copy_with_multiple_ranks()."""

    def __init__(self, optimizer: Any, shipped: Any) -> None:
        self._optimizer, self._shipped = optimizer, shipped

    def __call__(
        self,
        small_bucket: Sequence[torch.Tensor],
        communication_data_type: torch.dtype,
        log: Any = None,
        divide: bool = True,
        process_group: Any = None,
        bucket_ranks: Sequence[Any] = (),
        output_bucket: Sequence[Any] | None = None,
    ) -> None:
        group = self._optimizer.dp_process_group if process_group is None else process_group
        owners = [_owner(ranks) for ranks in bucket_ranks]
        slices = None
        if None not in owners and not divide:
            counts = [tensor.numel() for tensor in small_bucket]
            slices = slices_of(counts, [owner for owner in owners if owner is not None], dist.get_world_size(group))
        if slices is None or not scatters(slices):
            self._shipped(
                small_bucket, communication_data_type, log, divide, process_group, bucket_ranks, output_bucket
            )
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in small_bucket]).to(communication_data_type)
        summed = reduce_scatter(flat, slices, group)
        self._keep(summed, small_bucket, owners, output_bucket, dist.get_rank(group))

    def _keep(
        self,
        summed: torch.Tensor,
        bucket: Sequence[torch.Tensor],
        owners: Sequence[int | None],
        outputs: Sequence[Any] | None,
        own: int,
    ) -> None:
        """Writes this rank's slices to where DeepSpeed reads them."""
        first = 0
        for place, (tensor, owner) in enumerate(zip(bucket, owners, strict=True)):
            if owner != own:
                continue
            part = summed.narrow(0, first, tensor.numel()).view_as(tensor)
            first += tensor.numel()
            self._optimizer._add_to_grad_partition_buffer(outputs[place] if outputs else None, part)
            tensor.copy_(part)
            if tensor.is_cuda and self._optimizer.overlap_comm:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))


def reduce_scatter(flat: torch.Tensor, slices: Slices, group: Any) -> torch.Tensor:
    """Returns the sums of this rank's slices over all ranks, one after the other; with gloo the bits of an all-reduce
    of `flat`."""
    own = slices.of_rank[dist.get_rank(group)]
    if dist.get_backend(group) == "gloo":
        return _added_up(_exchanged(flat, slices, group), own, first_adders_of(flat, len(slices.of_rank)))
    return scattered_natively(flat, slices, group)


def scattered_natively(flat: torch.Tensor, slices: Slices, group: Any) -> torch.Tensor:
    """The same by the backend's own collective, whose shares are of one size: the largest."""
    counts = slices.counts()
    padded = flat.new_zeros(len(counts), max(counts))
    for row, count, parts in zip(padded, counts, slices.of_rank, strict=True):
        if parts:
            torch.cat([flat.narrow(0, *part) for part in parts], out=row.narrow(0, 0, count))
    summed = flat.new_empty(max(counts))
    collective = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # torch 2.13, and before
    collective(summed, padded.view(-1), group=group)
    return summed.narrow(0, 0, counts[dist.get_rank(group)])


def first_adders_of(flat: torch.Tensor, ranks: int) -> list[tuple[int, int, int]]:
    return first_adders(flat.numel(), flat.element_size(), ranks)


def _exchanged(flat: torch.Tensor, slices: Slices, group: Any) -> torch.Tensor:
    """Returns each rank's values of this rank's slices, (ranks, elements)."""
    counts = slices.counts()
    ranks, own = len(counts), counts[dist.get_rank(group)]
    sent = torch.cat([flat.narrow(0, *part) for parts in slices.of_rank for part in parts])
    received = flat.new_empty(ranks * own)
    dist.all_to_all_single(received, sent, [own] * ranks, counts, group=group)
    return received.view(ranks, own)


def _added_up(
    values: torch.Tensor, own: Sequence[tuple[int, int]], orders: Sequence[tuple[int, int, int]]
) -> torch.Tensor:
    """Adds (ranks, elements) over the ranks, each element in the order of its place in the bucket."""
    ranks = len(values)
    summed = torch.empty_like(values[0])
    place = 0
    for first, count in own:
        for start, end, rank in orders:
            begin, stop = max(first, start), min(first + count, end)
            if begin >= stop:
                continue
            part = slice(place + begin - first, place + stop - first)
            total = values[rank, part].clone()
            for further in range(1, ranks):
                total += values[(rank - further) % ranks, part]
            summed[part] = total
        place += count
    return summed


def _owner(ranks: Any) -> int | None:
    """The one rank that keeps a slice; None for a slice that several keep (Muon)."""
    if isinstance(ranks, frozenset):
        return next(iter(ranks)) if len(ranks) == 1 else None
    return int(ranks)


def _problem_of(optimizer: Any) -> str:
    """The reason why this optimizer's averaging cannot be replaced; empty where it can."""
    import deepspeed

    method = getattr(optimizer, _REPLACED, None)
    if deepspeed.__version__.partition("+")[0] not in KNOWN_VERSIONS:
        return f"DeepSpeed {deepspeed.__version__} is not known, only {', '.join(KNOWN_VERSIONS)}"
    if method is None or tuple(inspect.signature(method).parameters) != _PARAMETERS:
        return f"{type(optimizer).__name__} does not average as stages 1 and 2 do"
    if not (optimizer.reduce_scatter and optimizer.use_multi_rank_bucket_allreduce and optimizer.contiguous_gradients):
        return "it needs reduce_scatter, use_multi_rank_bucket_allreduce and contiguous_gradients, all true by default"
    if optimizer.sequence_parallel_size > 1:
        return "with sequence parallelism gradients are averaged otherwise"
    if dist.get_world_size(optimizer.dp_process_group) < 2:
        return "a single rank has nothing to reduce"
    if (backend := dist.get_backend(optimizer.dp_process_group)) not in ("gloo", "nccl"):
        return f"backend {backend} is not known, only gloo and nccl"
    return ""


def _agreed(group: Any, key: str, problem: str) -> str:
    """Returns the first problem of any rank of the group, on all of them the same; one that says nothing is one."""
    store = dist.distributed_c10d._get_default_store()
    key = f"laggard/reduce_scatter/{key}"
    members = dist.get_process_group_ranks(group)
    store.set(f"{key}/{dist.get_rank()}", problem or "able")
    keys = [f"{key}/{member}" for member in members]
    try:
        store.wait(keys, _AGREEMENT_TIMEOUT)
    except RuntimeError:
        return problem or "not all ranks ask for it: set LAGGARD_REDUCE_SCATTER for each"
    answers = [store.get(each).decode() for each in keys]
    return next((answer for answer in answers if answer != "able"), "")


def _adds_as_gloo(group: Any) -> bool:
    """Whether the sums are those of this torch's all-reduce, bit by bit: tried with both types and uneven slices, more
    than two segments a rank among them."""
    ranks = dist.get_world_size(group)
    made = torch.Generator().manual_seed(dist.get_rank())
    for dtype in (torch.float32, torch.bfloat16):
        for elements in (ranks * 5 + 3, ranks * 600_001):
            flat = torch.randn(elements, generator=made).to(dtype)
            counts = [elements // ranks] * (ranks - 1)
            slices = slices_of([*counts, elements - sum(counts)], range(ranks), ranks)
            summed = reduce_scatter(flat, slices, group)
            dist.all_reduce(flat, group=group)
            first, count = slices.of_rank[dist.get_rank(group)][0]
            if not torch.equal(summed, flat.narrow(0, first, count)):
                return False
    return True
