"""NCCL_ENV_UNKNOWN, NCCL_ENV_HARMFUL, NCCL_ENV_INERT on this machine: in /etc/nccl.conf, in the environment that
laggard was given, and in those of the ranks that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from laggard.model import Finding, Severity
from laggard.nccl.conf import ETC, NcclConf, parse_conf
from laggard.nccl.variable_table import Version
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.gpu.model.pci_devices import read_pci_gpus
from laggard.probes.host.host import Host
from laggard.probes.nccl.model.running_ranks import Ranks, read_ranks
from laggard.probes.nccl.rules.variable_findings import judge_environment
from laggard.probes.nccl.rules.variable_rules import NcclFacts
from laggard.probes.probe import Fact, Probe, Thresholds, finding
from laggard.probes.rdma.model.nics import read_nics

T = TypeVar("T")

_INFINIBAND = "/sys/class/infiniband"


class NcclThresholds(Thresholds, frozen=True):
    ignore: tuple[str, ...] = ()
    """Variables that this site sets on purpose."""


class Origin(NamedTuple):
    """One environment, and whose it is."""

    name: str
    settings: Mapping[str, str]
    version: Version


def check(host: Host, thresholds: NcclThresholds) -> Iterator[Finding | Fact]:
    etc, found = _machine_conf(host), read_ranks(host)
    origins = _origins(host, etc, found)
    yield Fact("ranks", len(found.ranks))
    if found.closed:
        yield Fact("not_permitted", f"the environment of {found.closed} processes is not for this user to read")
    yield from _idle(ETC, etc)
    for path, conf in {rank.conf_path: rank.conf for rank in found.ranks}.items():
        yield from _idle(path, conf)
    if any(origin.settings for origin in origins):  # else what is plugged in does not matter
        yield from _merged(origins, _facts(host), frozenset(thresholds.ignore))


def _machine_conf(host: Host) -> NcclConf:
    """/etc/nccl.conf; most machines have none. Raises Unknown where there is one that cannot be read."""
    try:
        return parse_conf(host.read(ETC))
    except NotFound:
        return NcclConf({}, ())


def _origins(host: Host, etc: NcclConf, found: Ranks) -> list[Origin]:
    """What the environment says wins over the user's file, and that over the machine's."""
    own = {name: value for name, value in _own_environment(host).items() if name.startswith("NCCL_")}
    origins = [Origin(ETC, etc.settings, ())]
    if own:
        origins.append(Origin("laggard's own environment", own, ()))
    for rank in found.ranks:
        origins.append(Origin(f"process {rank.pid}", {**etc.settings, **rank.environment}, rank.version))
    return origins


def _own_environment(host: Host) -> Mapping[str, str]:
    try:
        return host.environ()
    except NotFound:  # a recording of files alone
        return {}


def _merged(origins: list[Origin], facts: NcclFacts, ignored: frozenset[str]) -> Iterator[Finding]:
    """Each fault once, with all who have it: eight ranks of a job have the same variables."""
    found: dict[tuple[str, str, str], tuple[Finding, list[str]]] = {}
    judged: dict[tuple[Version, frozenset[tuple[str, str]]], tuple[Finding, ...]] = {}
    for origin in origins:
        key = origin.version, frozenset(origin.settings.items())
        if key not in judged:
            judged[key] = judge_environment(origin.settings, facts._replace(version=origin.version))
        for fault in judged[key]:
            if fault.device not in ignored:
                found.setdefault((fault.code, fault.device, fault.summary), (fault, []))[1].append(origin.name)
    for fault, names in found.values():
        yield msgspec.structs.replace(fault, evidence={**fault.evidence, "set_in": names[:8], "count": len(names)})


def _idle(path: str, conf: NcclConf) -> Iterator[Finding]:
    for number, why in conf.ineffective:
        yield finding(
            "NCCL_ENV_INERT",
            path,
            f"line {number} has not the effect that was meant: {why}",
            evidence={"file": path, "line": number},
            fix="Write NAME=VALUE without blanks, quotes or `export`.",
            severity=Severity.WARNING,
        )


def _facts(host: Host) -> NcclFacts:
    """What cannot be read is not known, and then nothing is taken for granted."""
    nics = _known(lambda: read_nics(host))
    cards = _known(lambda: read_pci_gpus(host))
    names = _known(lambda: host.entries(_INFINIBAND))
    return NcclFacts(
        rdma=None if nics is None else any(nic.rdma_device for nic in nics),
        devices=names,
        links=frozenset(_links(host, names or ())),
        peers=None if cards is None else len(cards) > 1,
    )


def _links(host: Host, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        ports = f"{_INFINIBAND}/{name}/ports"
        try:
            for port in host.entries(ports):
                yield host.read(f"{ports}/{port}/link_layer").strip()
        except Unknown:
            yield "unknown"


def _known(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except Unknown:
        return None


PROBE: Final = Probe("nccl_env", check, NcclThresholds())
