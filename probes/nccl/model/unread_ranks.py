"""The processes that train, of those whose environment cannot be read: by what every user may see of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from laggard.kit.environment import FALLBACK_RANK_DIR, SHARED_RANK_DIR
from laggard.kit.words import lazy_pattern
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.readings import query_gpus, query_nvml, read_field
from laggard.probes.gpu.model.services import is_service
from laggard.probes.host.host import Host

_RANK_FILE: Final = lazy_pattern(r"([0-9]{1,10})-[0-9a-f]{16}\.rank")
_NO_DRIVER: Final = "DRIVER_NOT_LOADED"  # then nobody computes on a GPU


class _RankFile(NamedTuple):
    """`pid`: as its writer counts, perhaps in a container; `uid`: whose folder it is in."""

    uid: int
    pid: int


def unread_ranks(host: Host, pids: Collection[int]) -> tuple[int, ...]:
    """Those of `pids` that have a rank file or compute on a GPU. NVML is asked only where no rank file answers. Raises
    Unknown where the machine has NVIDIA GPUs and NVML does not tell."""
    if not pids:
        return ()
    return _with_rank_file(host, pids) or _on_a_gpu(host, pids)


def _with_rank_file(host: Host, pids: Collection[int]) -> tuple[int, ...]:
    files = set(_rank_files(host))
    return tuple(pid for pid in pids if _identity(host, pid) in files) if files else ()


def _rank_files(host: Host) -> Iterator[_RankFile]:
    for base in (SHARED_RANK_DIR, FALLBACK_RANK_DIR):
        for user in filter(str.isdecimal, _entries(host, base)):
            for name in _entries(host, f"{base}/{user}"):
                if found := _RANK_FILE.fullmatch(name):
                    yield _RankFile(int(user), int(found[1]))


def _identity(host: Host, pid: int) -> _RankFile | None:
    """The process's user, and its number in the innermost namespace of its own."""
    try:
        lines = host.read(f"/proc/{pid}/status").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        return _RankFile(int(fields["Uid"].split()[0]), int(fields.get("NSpid", str(pid)).split()[-1]))
    except (Unknown, KeyError, ValueError, IndexError):
        return None


def _on_a_gpu(host: Host, pids: Collection[int]) -> tuple[int, ...]:
    """The processes on a GPU by NVML, without the services that hold a GPU of their own."""
    try:
        if query_nvml(host).error == _NO_DRIVER:
            return ()
        gpus = query_gpus(host)
    except NotApplicable:
        return ()
    reading = read_field([gpu for gpu in gpus if not gpu.mig], "processes", "a list of processes")
    computing = {process.pid for _, processes in reading.values for process in processes}
    found = tuple(pid for pid in pids if pid in computing and not is_service(host, pid))
    if not found and reading.unreadable:
        raise Unknown("; ".join(reading.unreadable))
    return found


def _entries(host: Host, path: str) -> tuple[str, ...]:
    try:
        return host.entries(path)
    except Unknown:
        return ()
