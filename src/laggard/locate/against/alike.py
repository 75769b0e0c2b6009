"""What is not as it was: whether two runs can be compared at all, and what else changed between them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.locate.against.digest import COUNTED_CALLS
from laggard.wire.digest import Difference, Digest

CALLS_RATIO: Final = 0.1
"""The share by which the number of an operation's collectives may differ: some come every few steps alone."""

WORK_RATIO: Final = 0.01

BYTES_RATIO: Final = 0.02

_FIRST: Final = ("torch", "nccl", "cuda", "hip", "driver", "gpu", "kernel", "os", "image", "python", "deepspeed")
"""The names that are told first: an image's own versions."""


def not_alike(before: Digest, now: Digest) -> tuple[Difference, ...]:
    """Why the two do not do the same work: script, ranks, groups, collectives a step. What one does not tell counts for
    nothing."""
    found = []
    if before.script and now.script and before.script != now.script:
        found.append(Difference("script", before.script, now.script))
    if before.world_size != now.world_size:
        found.append(Difference("world size", str(before.world_size), str(now.world_size)))
    if before.layout and now.layout and before.layout != now.layout:
        found.append(Difference("groups", ", ".join(before.layout), ", ".join(now.layout)))
    if before.calls and now.calls:
        found += _calls(before, now)
    return tuple(found)


def _calls(before: Digest, now: Digest) -> Iterator[Difference]:
    for name in sorted(before.calls.keys() | now.calls.keys()):
        old, new = before.calls.get(name, 0.0), now.calls.get(name, 0.0)
        if max(old, new) >= COUNTED_CALLS and abs(new - old) > max(CALLS_RATIO * max(old, new), COUNTED_CALLS / 2):
            yield Difference(f"{name} a step", f"{old:.3g}", f"{new:.3g}")


def differences(before: Digest, now: Digest) -> tuple[Difference, ...] | None:
    """Versions, variables, settings and nodes that are not as they were; None where neither run tells of the first
    three."""
    nodes = tuple(_nodes(before, now))
    sizes = (*_work(before, now), *_bytes(before, now))
    if not before.environment or not now.environment:
        return (*sizes, *nodes) or None
    return (*_environment(before, now), *sizes, *nodes)


def _environment(before: Digest, now: Digest) -> Iterator[Difference]:
    names = before.environment.keys() | now.environment.keys()
    for name in sorted(names, key=lambda it: (_FIRST.index(it) if it in _FIRST else len(_FIRST), it)):
        old, new = before.environment.get(name, ""), now.environment.get(name, "")
        if old != new:
            yield Difference(name, old, new)


def _work(before: Digest, now: Digest) -> Iterator[Difference]:
    if before.work and now.work and abs(now.work - before.work) > WORK_RATIO * before.work:
        yield Difference("elements of input a step", f"{before.work:.6g}", f"{now.work:.6g}")


def _bytes(before: Digest, now: Digest) -> Iterator[Difference]:
    """What an operation of a group moves in a step."""
    if not (before.operations and now.operations):
        return
    old, new = (_bytes_by_kind(each) for each in (before, now))
    for name in sorted(old.keys() & new.keys()):
        if abs(new[name] - old[name]) > BYTES_RATIO * max(old[name], new[name]):
            yield Difference(f"bytes of {name} a step", f"{old[name]:.4g}", f"{new[name]:.4g}")


def _bytes_by_kind(digest: Digest) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in digest.operations:
        name = f"{each.op} in {each.role} of {each.members}"
        found[name] = found.get(name, 0.0) + each.bytes
    return found


def _nodes(before: Digest, now: Digest) -> Iterator[Difference]:
    """The nodes that left and came; of a very large job those that the digests name. Of a run of which not all ranks
    were seen no node is known to be missing."""
    left, new = sorted(set(before.nodes) - set(now.nodes)), sorted(set(now.nodes) - set(before.nodes))
    left = left if now.ranks_seen >= now.world_size else []
    new = new if before.ranks_seen >= before.world_size else []
    if before.nodes and now.nodes and (left or new):
        yield Difference("nodes", ", ".join(left), ", ".join(new))
