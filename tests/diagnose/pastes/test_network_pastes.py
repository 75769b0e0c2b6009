"""`laggard diagnose`: pasted output of network tools. Each fault stands beside its nearest healthy look-alike."""

from __future__ import annotations

import pytest
from support.diagnosed import diagnose_text

Rows = list[tuple[str, str, str]]


def found(text: str) -> Rows:
    return [(each.code, each.severity.value, each.device) for each in diagnose_text(text).findings]


def ibstat(*states: str, rates: tuple[int, ...] = (), cards: int = 1) -> str:
    """Returns ibstat's output for devices in these states; `cards`: devices that share a system image GUID."""
    return "".join(
        f"CA 'mlx5_{number}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tSystem image GUID: 0xa0{number // cards:04x}\n"
        f"\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {'LinkUp' if state != 'Down' else 'Polling'}\n"
        f"\t\tRate: {rates[number] if rates else 400}\n\t\tLink layer: InfiniBand\n"
        for number, state in enumerate(states)
    )


LINK = "link mlx5_{}/1 state {} physical_state {} netdev ens{}np0 \n"
DEVINFO = "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\t\tport:\t1\n\t\t\tstate:\t\t\t{}\n"
STATUS = (
    "Infiniband device 'mlx5_{}' port 1 status:\n\tdefault gid:\t fe80::1\n\tstate:\t\t {}\n\tphys state:\t 5: LinkUp\n"
    "\trate:\t\t {} Gb/sec ({}X HDR)\n\tlink_layer:\t InfiniBand\n\n"
)

MAX_SHOWN = 64
"""The findings of one tool, however long a paste is."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ibstat("Active", "Active", "Down", "Active"), [("RDMA_PORT_DOWN", "critical", "mlx5_2 port 1")]),
        (ibstat("Active", "Initializing"), [("RDMA_PORT_DOWN", "critical", "mlx5_1 port 1")]),
        (
            ibstat("Active", "Active", "Active", rates=(400, 100, 400)),
            [("RDMA_RATE_LOW", "critical", "mlx5_1 port 1")],
        ),
        (ibstat(*["Down"] * 4), [("RDMA_PORT_DOWN", "critical", f"mlx5_{number} port 1") for number in range(4)]),
        (
            "".join(LINK.format(n, "ACTIVE", "LINK_UP", n) for n in range(7) if n != 3)
            + LINK.format(3, "DOWN", "DISABLED", 3),
            [("RDMA_PORT_DOWN", "critical", "mlx5_3 port 1")],
        ),
        (DEVINFO.format("PORT_DOWN (1)"), [("RDMA_PORT_DOWN", "warning", "mlx5_0 port 1")]),
        (
            "".join(STATUS.format(n, "4: ACTIVE", 100 if n == 1 else 200, 2 if n == 1 else 4) for n in range(3)),
            [("RDMA_RATE_LOW", "warning", "mlx5_1 port 1")],
        ),
        ("mlx5_0 port 1 ==> ib0 (Up)\nmlx5_1 port 1 ==> ib1 (Up)\nmlx5_2 port 1 ==> ib2 (Down)\n",
         [("RDMA_PORT_DOWN", "critical", "mlx5_2 port 1")]),
        # healthy: all up; the second ports of dual-port cards, with and without GUIDs; an adapter that nobody cabled
        (ibstat("Active", "Active", "Active", "Active"), []),
        (ibstat("Active", "Down", "Active", "Down", "Active", "Down", cards=2), []),
        (LINK.format(0, "ACTIVE", "LINK_UP", 0) + LINK.format(1, "DOWN", "DISABLED", 1), []),
        (ibstat("Active", "Active", "Down").replace("CA type: MT4129", "CA type: MT4123", 3).replace(
            "CA type: MT4123", "CA type: MT4129", 2), []),
        (DEVINFO.format("PORT_ACTIVE (4)"), []),
    ],
)  # fmt: skip
def test_ports(text: str, expected: Rows) -> None:
    assert found(text) == expected


def test_a_cut_list_of_ports_tells_what_it_shows() -> None:
    text = ibstat("Active", "Active", "Down", "Active")
    assert found(text[: text.index("Rate", text.index("Down"))]) == [("RDMA_PORT_DOWN", "critical", "mlx5_2 port 1")]
    assert (
        diagnose_text("CA 'mlx5_0'\n\tCA type: MT4129\n").files[0].unknown
        == "no port is in it: run ibstat without options"
    )


def perfquery(**counters: int) -> str:
    rows = "".join(f"{name}:{'.' * 10}{value}\n" for name, value in counters.items())
    return f"# Port counters: Lid 7 port 1 (CapMask: 0x5A00)\nPortSelect:......................1\n{rows}"


def ethtool(**counters: int) -> str:
    return "root@n1:~# ethtool -S ens3\nNIC statistics:\n" + "".join(f"     {k}: {v}\n" for k, v in counters.items())


MLXLINK = """$ sudo mlxlink -d mlx5_2 -m -c
Operational Info
----------------
State                              : {}
Speed                              : {}
Width                              : 4x

Supported Info
--------------
Enabled Link Speed                 : 0x000000f1 (NDR,HDR,EDR,FDR,SDR)
Supported Cable Speed              : 0x000000f1 (NDR,HDR,EDR,FDR,SDR)

Troubleshooting Info
--------------------
Recommendation                     : {}

Physical Counters and BER Info
------------------------------
Effective Physical BER             : {}
Link Down Counter                  : {}
"""
QUIET = "No issue was observed"
IBDIAGNET = "-I- Discovering ... 3 nodes\n-{}- {}\n-I- You can find detailed errors/warnings in: /tmp/ibdiagnet2.log\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (perfquery(SymbolErrorCounter=65535), [("RDMA_ERRORS_RISING", "warning", "LID 7 port 1")]),
        (perfquery(SymbolErrorCounter=3, LinkDownedCounter=1, PortXmitWait=99999999, VL15Dropped=4), []),
        ("   GUID 0xa088 port 22: [SymbolErrorCounter == 48212] [PortXmitWait == 99]\n",
         [("RDMA_ERRORS_RISING", "warning", "GUID 0xa088 port 22")]),
        (ethtool(rx_packets=10**9, rx_discards_phy=10**6), [("RDMA_ERRORS_RISING", "warning", "ens3")]),
        (ethtool(rx_packets=10**12, rx_discards_phy=2000, rx_prio3_pause=10**6, link_down_events_phy=1,
                 rx_symbol_err_phy=0, rx_corrected_bits_phy=10**12, outbound_pci_stalled_rd=0), []),
        (MLXLINK.format("Polling", "N/A", "Bad signal integrity", "N/A", 3),
         [("RDMA_PORT_DOWN", "critical", "mlx5_2")]),
        (MLXLINK.format("Polling", "N/A", "Cable is unplugged", "N/A", 0), [("RDMA_PORT_DOWN", "warning", "mlx5_2")]),
        (MLXLINK.format("\x1b[32mActive\x1b[0m", "IB-NDR", QUIET, "4E-10", 0),
         [("RDMA_ERRORS_RISING", "warning", "mlx5_2")]),
        (MLXLINK.format("Active", "IB-HDR", QUIET, "15E-255", 0), [("RDMA_RATE_LOW", "warning", "mlx5_2")]),
        (MLXLINK.format("Active", "IB-NDR", QUIET, "15E-255", 38), [("RDMA_LINK_FLAPPING", "warning", "mlx5_2")]),
        (MLXLINK.format("Active", "IB-NDR", QUIET, "15E-255", 1), []),
        (IBDIAGNET.format("E", 'H/"gpu-1 mlx5_6"/P1 - "symbol_error_counter" increased during the run'),
         [("RDMA_ERRORS_RISING", "warning", 'H/"gpu-1 mlx5_6"/P1')]),
        (IBDIAGNET.format("W", 'Link between S/"leaf/U1"/P22 and H/"gpu-1 mlx5_6"/P1: Unexpected actual link speed 50'),
         [("RDMA_RATE_LOW", "critical", 'S/"leaf/U1"/P22 and H/"gpu-1 mlx5_6"/P1')]),
        (IBDIAGNET.format("I", "Links Check finished"), []),
    ],
)  # fmt: skip
def test_counters_and_links(text: str, expected: Rows) -> None:
    assert found(text) == expected


def test_an_error_of_a_kind_that_is_not_judged_is_told() -> None:
    diagnosis = diagnose_text(IBDIAGNET.format("E", "Duplicated node description: gpu-1 HCA-1"))
    assert not diagnosis.findings
    assert "Duplicated node description" in diagnosis.files[0].unknown


def test_one_lane_with_all_errors_is_named() -> None:
    lanes = {f"rx_err_lane_{lane}_phy": 4_400_000 if lane == 1 else 9 for lane in range(4)}
    [finding] = diagnose_text(ethtool(rx_packets=10**9, rx_crc_errors_phy=4410, **lanes)).findings
    assert finding.evidence["most_errors_on"] == "lane 1"
    assert finding.evidence["host"] == "n1"


def test_the_host_stands_in_front_of_lines() -> None:
    """pdsh and srun -l put the host there; each host's ports are compared among themselves."""
    text = ibstat("Active", "Active", "Down")
    lines = [f"{host}: {line}" for host in ("n1", "n2") for line in text.splitlines()]
    evidence = [each.evidence["host"] for each in diagnose_text("\n".join(lines)).findings]
    assert evidence == ["n1", "n2"]


@pytest.mark.parametrize(
    "line",
    ["CA 'mlx5_0'\n", "link mlx5_0/1 state ACTIVE \n", "NIC statistics:\n     a_b: 1\n", "Operational Info\n---\n",
     "-I- Discovering\n-E- x\n", "root@a:~# x\n", "# Port counters: Lid 1 port 1\n", "a: CA 'x'\n"],
)  # fmt: skip
def test_any_text_is_judged_within_bounds(line: str) -> None:
    for text in (line * 20_000, line.rstrip() + " " + "a " * 200_000):
        assert len(diagnose_text(text).findings) <= MAX_SHOWN


LAN = "10.7.0.0/24 dev eth1 proto kernel scope link src 10.7.0.5 \n"
POD_ROUTES = LAN + "blackhole 10.244.1.0/26 proto bird \n10.244.1.3 dev cali0 scope link \n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LAN + "blackhole 10.7.0.0/28 \n", [("NETWORK_DROPS", "critical", "the routes")]),
        (LAN + "unreachable 10.7.0.9 dev lo metric 4294967295 \n", [("NETWORK_DROPS", "critical", "the routes")]),
        ("prohibit 10.7.0.128/25 \n" + LAN, [("NETWORK_DROPS", "critical", "the routes")]),
        ("fd00:7::/64 dev eth1 proto kernel metric 256 pref medium\nblackhole fd00:7::8:0/112 dev lo metric 1024\n",
         [("NETWORK_DROPS", "critical", "the routes")]),
        (LAN + "blackhole 10.7.0.64/26 proto bird \n", [("NETWORK_DROPS", "warning", "the routes")]),
        (POD_ROUTES, []),  # the block of this node's pods, as Calico has it on each node
        (LAN + "blackhole 10.0.0.0/8 \n", []),  # the route to the neighbours is the longer one
        (LAN + "blackhole 10.8.0.0/16 \nblackhole 300.1.1.1 \ndefault via 10.7.0.1 dev eth1 \n", []),
        ("169.254.0.0/16 dev eth0 proto kernel scope link src 169.254.1.2 \nblackhole 169.254.169.0/24 \n", []),
    ],
)  # fmt: skip
def test_a_route_that_throws_away_what_goes_to_neighbours(text: str, expected: list[tuple[str, str, str]]) -> None:
    found = [(each.code, each.severity.value, each.device) for each in diagnose_text(text).findings]
    assert found == expected


@pytest.mark.parametrize(
    "heading", ["== n3: ip route; ss -tn", "### n3: sudo ip -4 route show", "---- n3 ----", "=== n3 ==="]
)
def test_the_heading_of_a_loop_over_hosts_names_the_host(heading: str) -> None:
    healthy = f"{heading.replace('n3', 'n2')}\n{LAN}"
    (finding,) = diagnose_text(f"{healthy}{heading}\n{LAN}blackhole 10.7.0.0/28 \n").findings
    assert finding.evidence["host"] == "n3"
