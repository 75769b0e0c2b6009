"""PFC_OFF: priority flow control on the RoCE ports that jobs use, from the kernel's Data Center Bridging."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.model import Finding
from laggard.probes.host import Host
from laggard.probes.rdma import finish
from laggard.probes.roce import Priorities, RoceThresholds, judge_priorities, roce_netdevs
from laggard.probes.shape import Fact, Missing, NotApplicable, Unknown

_FIX = (
    "Turn PFC on for the priority of the RDMA traffic (most often 3), with trust in DSCP, on the host and on every "
    'switch port of the fabric alike; or tell the profile that this fabric does without (roce_pfc.expect: "off").'
)
_COMMANDS = (
    "dcb pfc show dev {netdev}",
    "mlnx_qos -i {netdev}",
    "mlnx_qos -i {netdev} --trust dscp --pfc 0,0,0,1,0,0,0,0",
)


def look_at_roce_pfc(host: Host, thresholds: RoceThresholds) -> Iterator[Finding | Fact]:
    ports, complaints = roce_netdevs(host, thresholds)
    enabled: dict[str, Priorities] = {}
    silent: list[str] = []
    for name in ports:
        try:
            enabled[name] = host.pfc(name).priorities
        except Missing:
            silent.append(name)
        except Unknown as error:
            complaints.append(str(error))
    yield Fact("priorities", enabled)
    yield from judge_priorities("PFC_OFF", enabled, ports, thresholds.expect, _FIX, _COMMANDS)
    finish(complaints + ([f"the driver of {silent[0]} tells nothing of PFC"] if silent and enabled else []))
    if silent:
        raise NotApplicable(f"the driver of {', '.join(silent)} has no priority flow control (DCB)")
