"""NCCL_WQE_SLOW: RDMA transfers that NCCL found slow; OFI_SENDRECV: AWS's plugin without RDMA writes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.model import Finding, Severity
from laggard.nccl.log.model import NcclProcess, SlowTransfers
from laggard.probes.nccl.model.job import evidence_of, hosts_of
from laggard.probes.probe import finding
from laggard.text.words import counted, seconds_text

_TELLS_PLATFORM = (1, 13)
"""The version from which on aws-ofi-nccl logs `platform set` (src/nccl_ofi_net.c at v1.13.2-aws, and not at
v1.9.2-aws)."""


def judge_slow_transfers(processes: Sequence[NcclProcess]) -> tuple[Finding, ...]:
    """Returns a finding for each device of each host."""
    found: dict[tuple[str, str], list[tuple[NcclProcess, SlowTransfers]]] = {}
    for process in processes:
        for slow in process.slow_transfers:
            found.setdefault((process.host, slow.device), []).append((process, slow))
    return tuple(_slow_device(host, device, found[host, device]) for host, device in sorted(found))


def _slow_device(host: str, device: str, found: Sequence[tuple[NcclProcess, SlowTransfers]]) -> Finding:
    stalled = sum(slow.lines for _, slow in found if slow.stalled)
    late = sum(slow.lines for _, slow in found if not slow.stalled)
    longest = max(slow.longest_ns for _, slow in found) / 1e9
    worst = max((slow for _, slow in found), key=lambda slow: (slow.stalled, slow.longest_ns))
    parts = [f"{counted(stalled, 'time')} without any end" if stalled else "", f"{counted(late, 'time')} late"]
    what = " and ".join(filter(None, (parts[0], parts[1] if late else "")))
    return finding(
        "NCCL_WQE_SLOW",
        f"{host or 'the job'} {device}",
        f"its transfers took longer than NCCL_IB_WQE_LATENCY_THRESHOLD_NS: {what}, up to {seconds_text(longest)}",
        evidence={"stalled": stalled, "late": late, "longest_seconds": longest, "log": worst.text}
        | evidence_of([process for process, _ in found]),
        fix="Compare the port's error, congestion and retransmission counters, its rate and its cable with its peers', "
        "on both sides of the link; where all ports are slow, look at the switch, or raise the threshold.",
        commands=(f"rdma statistic show link {device}", "perfquery -x"),
    )


def judge_protocol(processes: Sequence[NcclProcess]) -> tuple[Finding, ...]:
    """Returns findings where the plugin's two protocols are mixed, and where SENDRECV was chosen by a user, or for want
    of anything that the plugin knows of an EFA machine. Where the platform chose it, it is the right one there; plugins
    before 1.13 do not log that they were told by the platform."""
    by_protocol = {name: [each for each in processes if each.protocol == name] for name in ("RDMA", "SENDRECV")}
    if all(by_protocol.values()):
        return (_mixed(by_protocol["SENDRECV"], by_protocol["RDMA"]),)
    chosen = [each for each in by_protocol["SENDRECV"] if each.protocol_set_by == "user"]
    fallen_back = [each for each in by_protocol["SENDRECV"] if not each.protocol_set_by and _would_tell(each)]
    found = []
    if chosen:
        found.append(_send_receive(chosen, "OFI_NCCL_PROTOCOL=SENDRECV asks for it"))
    if fallen_back:
        found.append(_send_receive(fallen_back, "the plugin did not recognise the machine"))
    return tuple(found)


def _would_tell(process: NcclProcess) -> bool:
    """Whether this runs over EFA with a plugin that logs where the platform chose the protocol."""
    version = process.libfabric_plugin
    return process.provider.split(";")[0] == "efa" and version is not None and version >= _TELLS_PLATFORM


def _mixed(some: Sequence[NcclProcess], others: Sequence[NcclProcess]) -> Finding:
    return finding(
        "OFI_SENDRECV",
        hosts_of(some),
        f"protocol SENDRECV, and RDMA on {hosts_of(others)}: ranks with different protocols cannot connect",
        evidence={"cause": "mixed"} | evidence_of(some),
        fix="Set OFI_NCCL_PROTOCOL on all ranks alike, or nowhere, and run one version of aws-ofi-nccl.",
        severity=Severity.CRITICAL,
    )


def _send_receive(processes: Sequence[NcclProcess], cause: str) -> Finding:
    return finding(
        "OFI_SENDRECV",
        hosts_of(processes),
        f"protocol SENDRECV in place of RDMA: {cause}",
        evidence={"cause": cause, "provider": processes[0].provider} | evidence_of(processes),
        fix="Remove OFI_NCCL_PROTOCOL, or try OFI_NCCL_PROTOCOL=RDMA on all ranks, with an aws-ofi-nccl that knows the "
        "machine; compare the bandwidth.",
    )
