"""NCCL_VERSION_MIXED: ranks of one communicator that run different NCCLs. Pure.

A file may hold one job after the other, each with its version: only ranks that are known to be of one communicator are
compared, by `commId` (2.18 and newer), else as ranks of one size of which none comes twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from laggard.model import Finding
from laggard.nccl.log.model import MISMATCH, NcclProcess
from laggard.nccl.variables import version_of_code
from laggard.probes.nccl.model.job import evidence_of, hosts_of, ranks_of
from laggard.probes.probe import finding
from laggard.text.words import ranks_text

_MISMATCH = re.compile(r"rank (\d{1,9}) version (\d{1,9}) rank (\d{1,9}) version (\d{1,9})")
_FIX = (
    "Run one image or one environment on all nodes; look for an NCCL of the system in LD_LIBRARY_PATH, LD_PRELOAD and "
    "/etc/ld.so.conf.d."
)
_COMMANDS = ("ldconfig -p | grep libnccl", "python -c 'import torch; print(torch.cuda.nccl.version())'")


def judge_versions(processes: tuple[NcclProcess, ...]) -> tuple[Finding, ...]:
    """At most one finding: NCCL's own word for it, else the first communicator whose ranks differ."""
    for process in processes:
        hint = process.hint(MISMATCH)
        match = _MISMATCH.search(hint.text) if hint else None
        if hint and match:
            told = {version_of_code(int(match[2])): [int(match[1])], version_of_code(int(match[4])): [int(match[3])]}
            return (_finding(told, [process], hint.text),)
    for members in _communicators(processes):
        versions: dict[str, list[NcclProcess]] = {}
        for process in members:
            if process.version:
                versions.setdefault(process.version, []).append(process)
        told = {version: list(ranks_of(own)) for version, own in versions.items()}
        if _mixed(told):
            return (_finding(told, members, ""),)
    return ()


def _mixed(versions: Mapping[str, list[int]]) -> bool:
    """A rank with two versions, or a version that is the beginning of another, is a torn line."""
    ranks = [rank for own in versions.values() for rank in own]
    whole = [one for one in versions if not any(other.startswith(f"{one}.") for other in versions)]
    return len(whole) > 1 and len(set(ranks)) == len(ranks)


def _communicators(processes: tuple[NcclProcess, ...]) -> Iterator[list[NcclProcess]]:
    named: dict[str, list[NcclProcess]] = {}
    sized: dict[int, list[NcclProcess]] = {}
    for process in processes:
        for own in process.communicators:
            if own.identity:
                named.setdefault(own.identity, []).append(process)
        world = process.world
        if world and not world.identity:
            sized.setdefault(world.ranks, []).append(process)
    yield from named.values()
    yield from (members for members in sized.values() if _once(process.rank for process in members))


def _once(ranks: Iterable[int | None]) -> bool:
    seen = list(ranks)
    return len(set(seen)) == len(seen)


def _finding(versions: Mapping[str, list[int]], processes: list[NcclProcess], line: str) -> Finding:
    words = [f"{version} on {ranks_text(ranks) or 'some'}" for version, ranks in sorted(versions.items())]
    return finding(
        "NCCL_VERSION_MIXED",
        hosts_of(processes),
        f"ranks of one communicator run different NCCLs: {'; '.join(words)}",
        evidence={"versions": {version: ranks[:64] for version, ranks in versions.items()}, "log": line}
        | evidence_of(processes),
        fix=_FIX,
        commands=_COMMANDS,
    )
