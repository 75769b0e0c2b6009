"""PFC_OFF: priority flow control on the RoCE ports that jobs use, from the kernel's Data Center Bridging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe
from laggard.probes.rdma.rules.roce_priorities import RoceThresholds, Setting, look_at_priorities

_PFC: Final = Setting(
    "PFC_OFF",
    "priority flow control (DCB)",
    "Turn PFC on for the priority of the RDMA traffic (most often 3), with trust in DSCP, on the host and on every "
    'switch port of the fabric alike; or tell the profile that this fabric does without (roce_pfc.expect: "off").',
    (
        "dcb pfc show dev {netdev}",
        "mlnx_qos -i {netdev}",
        "mlnx_qos -i {netdev} --trust dscp --pfc 0,0,0,1,0,0,0,0",
    ),
)


def check(host: Host, thresholds: RoceThresholds) -> Iterator[Finding | Fact]:
    return look_at_priorities(host, thresholds, _PFC, lambda host, netdev: host.pfc(netdev).priorities)


PROBE: Final = Probe("roce_pfc", check, RoceThresholds())
