"""PFC_OFF: RoCE ports that jobs use without priority flow control, by the kernel's Data Center Bridging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.host.host import Host
from laggard.probes.probe import RDMA, Fact, Probe
from laggard.probes.rdma.rules.roce_priorities import RoceSetting, RoceThresholds, check_priorities

_PFC: Final = RoceSetting(
    "PFC_OFF",
    "priority flow control (DCB)",
    "Turn PFC on for the priority of the RDMA traffic (most often 3), with trust in DSCP, on the host and on every "
    "switch port of the network alike; or, where this network runs without it, set it so in the profile "
    '(roce_pfc.expect: "off").',
    (
        "dcb pfc show dev {netdev}",
        "mlnx_qos -i {netdev}",
        "mlnx_qos -i {netdev} --trust dscp --pfc 0,0,0,1,0,0,0,0",
    ),
)


def check(host: Host, thresholds: RoceThresholds) -> Iterator[Finding | Fact]:
    return check_priorities(host, thresholds, _PFC, lambda host, netdev: host.pfc(netdev).priorities)


PROBE: Final = Probe("roce_pfc", check, RoceThresholds(), group=RDMA)
