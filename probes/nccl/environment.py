"""NCCL_ENV_UNKNOWN, NCCL_ENV_HARMFUL and NCCL_ENV_INERT: NCCL's settings in /etc/nccl.conf, in laggard's own
environment, and in the environments of the ranks that run here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from laggard.kit.environment import FALLBACK_RANK_DIR, SHARED_RANK_DIR
from laggard.kit.words import lazy_pattern
from laggard.model import Finding, Severity
from laggard.nccl.variable_table import Version
from laggard.nccl.variables import ETC, NcclConf, may_be_shown, parse_conf
from laggard.probes.errors import NotApplicable, Unknown, if_present, or_none
from laggard.probes.gpu.model.pci_devices import read_pci_gpus
from laggard.probes.gpu.model.readings import query_gpus, query_nvml, read_field
from laggard.probes.gpu.model.services import is_service
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import status_words
from laggard.probes.nccl.model.running_ranks import RankProcesses, read_rank_processes
from laggard.probes.nccl.rules.variable_rules import VariableContext, judge_environment
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, say
from laggard.probes.rdma.model.nics import read_nics

_INFINIBAND = "/sys/class/infiniband"
_MAX_NAMED: Final = 4
_WORST_FIRST: Final = tuple(Severity)
_MAX_FINDINGS: Final = 64
"""The most findings. Any user can make as many as they like, and those of the machine's other probes must have room
beside them."""

_MAX_UNKNOWN: Final = 64
"""The most names that nobody knows: for each the known name that it resembles is looked for, which takes a
millisecond."""


class NcclThresholds(Thresholds, frozen=True):
    ignore: tuple[str, ...] = ()
    """Variables that this site sets on purpose."""


class NcclEnvironment(NamedTuple):
    """The NCCL settings of one process, or of the machine."""

    owner: str
    settings: Mapping[str, str]
    version: Version
    of_job: bool = False
    """True: the environment is that of a process that runs here, whoever started it."""


def check(host: Host, thresholds: NcclThresholds) -> Iterator[Finding | Fact]:
    etc, ranks, problem = _machine_conf(host), RankProcesses((), 0), None
    try:
        ranks = read_rank_processes(host)
    except Unknown as error:  # whoever keeps processes from being read keeps the machine's own file from nothing
        problem = error
    environments = _with_few_unknown(_environments(host, etc, ranks))
    if problem is None:
        yield Fact("ranks", len(ranks.processes))
    if ranks.not_permitted:
        told = f"the environment of {_processes(ranks.not_permitted)} is not for this user to read"
        yield Fact("not_permitted", f"{told}; {ranks.no_reader}" if ranks.no_reader else told)
    found = [*_judge_conf(ETC, etc)]
    if any(environment.settings for environment in environments):  # else the hardware does not matter
        found += _judge(environments, _context(host), frozenset(thresholds.ignore))
    for path, conf in {rank.conf_path: rank.conf for rank in ranks.processes}.items():
        found += _judge_conf(path, conf)
    found.sort(key=_badness)
    yield from found[:_MAX_FINDINGS]
    if len(found) > _MAX_FINDINGS:
        yield Fact("not_listed", f"{len(found) - _MAX_FINDINGS} more findings")
    if problem is not None:
        raise problem
    _raise_if_unread(host, ranks)
    if ranks.hanging:
        told = f"{_processes(ranks.hanging)} of users whose processes do not let themselves be read were left out"
        yield Fact("hanging", told)
    if ranks.left_out:
        raise Unknown(f"there was no time or room for {_processes(ranks.left_out)}")


def _raise_if_unread(host: Host, ranks: RankProcesses) -> None:
    """Raises Unknown where processes train here whose environment could not be read, or may: other users' shells and
    services have no NCCL to set."""
    why = ranks.no_reader or "root may"
    try:
        unread = unread_ranks(host, ranks.unread)
    except Unknown as error:
        text = f"the environment of {_processes(len(ranks.unread))} is not for this user to read"
        raise Unknown(f"{text}, and which of them train is not known ({error}); {why}") from None
    if unread:
        named = ", ".join(map(str, unread[:_MAX_NAMED]))
        more = f" and {len(unread) - _MAX_NAMED} more" if len(unread) > _MAX_NAMED else ""
        whose = "a process that trains" if len(unread) == 1 else f"{len(unread)} processes that train"
        raise Unknown(f"the environment of {whose} ({named}{more}) is not for this user to read; {why}")


def _processes(number: int) -> str:
    return f"{number} process{'' if number == 1 else 'es'}"


def _machine_conf(host: Host) -> NcclConf:
    """Reads /etc/nccl.conf, which most machines do not have. Raises Unknown where it is there and cannot be read."""
    return parse_conf(if_present(host.read, ETC) or "")


def _environments(host: Host, etc: NcclConf, ranks: RankProcesses) -> list[NcclEnvironment]:
    """Merges the settings of each rank: its environment overrides its user's file, and that the machine's file."""
    own = {name: value for name, value in host.variables().items() if name.startswith("NCCL_")}
    environments = [NcclEnvironment(ETC, etc.settings, ())]
    if own:
        environments.append(NcclEnvironment("laggard's own environment", own, ()))
    for rank in ranks.processes:
        machines = {} if rank.etc_read else etc.settings
        settings = {**machines, **rank.environment}
        environments.append(NcclEnvironment(f"process {rank.pid}", settings, rank.version, of_job=True))
    return environments


def _with_few_unknown(environments: list[NcclEnvironment]) -> list[NcclEnvironment]:
    names = dict.fromkeys(name for each in environments for name in each.settings if not may_be_shown(name))
    dropped = frozenset(list(names)[_MAX_UNKNOWN:])
    if not dropped:
        return environments
    return [
        each._replace(settings={name: value for name, value in each.settings.items() if name not in dropped})
        for each in environments
    ]


def _judge(environments: list[NcclEnvironment], context: VariableContext, ignored: frozenset[str]) -> Iterator[Finding]:
    """Makes one finding for each fault, with all owners: the eight ranks of a job have the same variables. What jobs
    alone set is a warning at most: a node must not be drained for what any of its users can set."""
    found: dict[tuple[str, str, str], tuple[Finding, list[NcclEnvironment]]] = {}
    judged: dict[tuple[Version, frozenset[tuple[str, str]]], tuple[Finding, ...]] = {}
    for environment in environments:
        key = environment.version, frozenset(environment.settings.items())
        if key not in judged:
            judged[key] = judge_environment(environment.settings, context._replace(version=environment.version))
        for fault in judged[key]:
            if fault.device not in ignored:
                place = fault.code, fault.device, fault.summary
                worst, owners = found.get(place, (fault, []))
                found[place] = min(worst, fault, key=_badness), [*owners, environment]
    for fault, owners in found.values():
        critical = fault.severity is Severity.CRITICAL
        severity = Severity.WARNING if critical and all(each.of_job for each in owners) else fault.severity
        named = {"set_in": [each.owner for each in owners[:8]], "count": len(owners)}
        yield msgspec.structs.replace(fault, evidence={**fault.evidence, **named}, severity=severity)


def _badness(found: Finding) -> int:
    return _WORST_FIRST.index(found.severity)


def _judge_conf(path: str, conf: NcclConf) -> Iterator[Finding]:
    for number, reason in conf.ineffective:
        yield say("nccl", "line", path, {"file": path, "line": number}, number=number, told=reason)


def _context(host: Host) -> VariableContext:
    """Reads the hardware. What cannot be read is not known, and then nothing is assumed."""
    nics = or_none(read_nics, host)
    gpus = or_none(read_pci_gpus, host)
    names = or_none(host.entries, _INFINIBAND)
    return VariableContext(
        rdma=None if nics is None else any(nic.rdma_device for nic in nics),
        devices=names,
        link_layers=frozenset(_link_layers(host, names or ())),
        several_gpus=None if gpus is None else len(gpus) > 1,
    )


def _link_layers(host: Host, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        ports = f"{_INFINIBAND}/{name}/ports"
        try:
            for port in host.entries(ports):
                yield host.read(f"{ports}/{port}/link_layer").strip()
        except Unknown:
            yield "unknown"


# The processes that train, of those whose environment cannot be read: by what every user may see of them.

_RANK_FILE: Final = lazy_pattern(r"([0-9]{1,10})-[0-9a-f]{16}\.rank")
_NO_DRIVER: Final = "DRIVER_NOT_LOADED"  # then nobody computes on a GPU


class _RankFile(msgspec.Struct, frozen=True):
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
        for user in filter(str.isdecimal, host.names(base)):
            for name in host.names(f"{base}/{user}"):
                if found := _RANK_FILE.fullmatch(name):
                    yield _RankFile(int(user), int(found[1]))


def _identity(host: Host, pid: int) -> _RankFile | None:
    """The process's user, and its number in the innermost namespace of its own."""
    user, number = (status_words(host.text, pid, field) for field in ("Uid", "NSpid"))
    known = all(word.isdecimal() for word in (*user[:1], *number[-1:]))
    return _RankFile(int(user[0]), int(number[-1]) if number else pid) if user and known else None


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
    found = tuple(pid for pid in pids if pid in computing and not is_service(host.text, pid))
    if not found and reading.unreadable:
        raise Unknown("; ".join(reading.unreadable))
    return found


PROBE: Final = Probe("nccl_env", check, NcclThresholds(), GPU.deadline_seconds)  # it may have to start NVML
