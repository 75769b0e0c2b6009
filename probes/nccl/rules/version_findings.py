"""NCCL_VERSION_MIXED: ranks of one communicator that run different versions of NCCL. Pure.

A file may hold several jobs, each with its own version. Only ranks that belong to one communicator are compared: ranks
with the same `commId` (2.18 and newer), else ranks with the same communicator size of which none occurs twice.
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
    "Run one image or one environment on all nodes; look for a system-wide NCCL in LD_LIBRARY_PATH, LD_PRELOAD and "
    "/etc/ld.so.conf.d."
)
_COMMANDS = ("ldconfig -p | grep libnccl", "python -c 'import torch; print(torch.cuda.nccl.version())'")


def judge_versions(processes: tuple[NcclProcess, ...]) -> tuple[Finding, ...]:
    """Returns at most one finding: of NCCL's own warning, else of the first communicator whose ranks differ."""
    for process in processes:
        hint = process.hint(MISMATCH)
        match = _MISMATCH.search(hint.text) if hint else None
        if hint and match:
            ranks_by_version = {
                version_of_code(int(match[2])): [int(match[1])],
                version_of_code(int(match[4])): [int(match[3])],
            }
            return (_finding(ranks_by_version, [process], hint.text),)
    for members in _communicators(processes):
        versions: dict[str, list[NcclProcess]] = {}
        for process in members:
            if process.version:
                versions.setdefault(process.version, []).append(process)
        ranks_by_version = {version: list(ranks_of(own)) for version, own in versions.items()}
        if _mixed(ranks_by_version):
            return (_finding(ranks_by_version, members, ""),)
    return ()


def _mixed(versions: Mapping[str, list[int]]) -> bool:
    """Returns whether there are several versions. A rank with two versions, or a version that another one begins with,
    comes from a torn line and does not count."""
    ranks = [rank for own in versions.values() for rank in own]
    whole = [version for version in versions if not any(other.startswith(f"{version}.") for other in versions)]
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
    yield from (members for members in sized.values() if _all_different(process.rank for process in members))


def _all_different(ranks: Iterable[int | None]) -> bool:
    all_ranks = list(ranks)
    return len(set(all_ranks)) == len(all_ranks)


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
