"""RDMA probes: formats of the kernel's files, which ports are peers, and verdicts where files cannot be read."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.judge import Check
from support.rows import rows

from laggard.model import Severity
from laggard.probes.host.kernel import Pfc
from laggard.probes.host.live import parse_answer, read_pfc, request
from laggard.probes.rdma.error_counters import parse_count
from laggard.probes.rdma.model.gid_table import Gid, parse_gid, preferred_gid
from laggard.probes.rdma.model.nccl_settings import parse_hca_selection
from laggard.probes.rdma.model.node import nearest_ports, node_ports
from laggard.probes.rdma.model.sysfs import ACTIVE, Port, PortKind, parse_rate, parse_state, roce_path_mtu
from laggard.probes.rdma.ports import severity_if_down

pytestmark = pytest.mark.usefixtures("without_processes")

PROBES = ("rdma_devices", "rdma_ports", "rdma_net", "rdma_errors", "roce_pfc", "roce_ecn")


# Formats


def test_states_and_rates() -> None:
    assert parse_state("4: ACTIVE\n") == (4, "ACTIVE")
    assert parse_state("5: LinkUp\n") == (5, "LinkUp")
    assert parse_rate("400 Gb/sec (4X NDR)\n") == (400.0, 4)
    assert parse_rate("2.5 Gb/sec (1X SDR)\n") == (2.5, 1)
    assert parse_rate("100 Gb/sec\n") == (100.0, 0)


@given(st.text(max_size=40))
def test_any_text_can_be_parsed(text: str) -> None:
    state, rate, count, gid = parse_state(text), parse_rate(text), parse_count(text), parse_gid(text)
    assert state is None or state[0] >= 0
    assert rate is None or rate[0] >= 0
    assert count is None or 0 <= count < 1 << 63
    assert gid is None or 0 <= gid < 1 << 128
    selection = parse_hca_selection(text, "test")
    assert selection is None or all(selection.names)


@given(st.integers(0, (1 << 63) - 1))
def test_a_counter_is_parsed_back(value: int) -> None:
    assert parse_count(f"{value}\n") == value


@pytest.mark.parametrize("text", ["", "-1", "N/A (no PMA)", "1e3", "٣", "18446744073709551615", "0x10"])
def test_what_is_no_counter(text: str) -> None:
    assert parse_count(text) is None


def gid(number: int, text: str, kind: str = "RoCE v2") -> Gid:
    address = parse_gid(text)
    assert address is not None
    return Gid(number, address, kind)


LOCAL = "fe80:0000:0000:0000:a288:c2ff:feb8:a0b0"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a64:0011"
IPV6 = "fd00:0000:0000:0000:0000:0000:0000:0011"


def test_gid_scopes() -> None:
    assert [gid(0, text).scope for text in (LOCAL, IPV4, IPV6)] == ["link-local", "ipv4", "global"]
    assert not gid(0, IPV4, "IB/RoCE v1").routable and gid(0, IPV4).routable


def test_ipv4_is_preferred_and_then_the_lowest_index() -> None:
    assert preferred_gid([gid(1, LOCAL), gid(3, IPV6), gid(5, IPV4), gid(7, IPV4)]) == gid(5, IPV4)
    assert preferred_gid([gid(1, LOCAL), gid(2, IPV4, "IB/RoCE v1")]) is None


@pytest.mark.parametrize(("mtu", "size"), [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (351, 0)])
def test_rdma_mtu_of_an_ethernet_mtu(mtu: int, size: int) -> None:
    assert roce_path_mtu(mtu) == size


@rows("probes/ib_hca")
def test_nccl_ib_hca(text: str, absent: tuple[str, ...]) -> None:
    selection = parse_hca_selection(text, "test")
    assert selection is not None and selection.absent(("mlx5_0", "mlx5_1")) == absent


# Priority flow control over netlink


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def answer(enabled: int) -> bytes:
    pfc = struct.pack("=BBBxH2x16Q", 8, enabled, 0, 0, *range(16))
    body = (
        struct.pack("=BBH", 0, 21, 0) + attribute(1, b"eth0\0") + attribute(13, attribute(1, b"x") + attribute(2, pfc))
    )
    return struct.pack("=IHHII", 16 + len(body), 78, 0, 1, 0) + body


def test_pfc_answer() -> None:
    assert parse_answer(answer(0b1000)) == Pfc(enabled=8, capable=8)
    assert parse_answer(answer(0b1001)).priorities == (0, 3)


@given(st.binary(max_size=300))
def test_any_netlink_answer_can_be_parsed(data: bytes) -> None:
    for whole in (data, answer(8)[:20] + data):
        try:
            found = parse_answer(whole)
        except OSError:
            continue
        assert set(found.priorities) <= set(range(8))


def test_the_request_names_the_device() -> None:
    data = request("enp26s0np0")
    assert struct.unpack_from("=IH", data) == (len(data), 78) and b"enp26s0np0\0" in data


def test_the_live_kernel_answers() -> None:
    """The loopback device has no PFC; a device that does not exist is another error."""
    assert read_pfc("lo") is None
    with pytest.raises(OSError, match="No such device"):
        read_pfc("laggard-none")


# Peers

KIND = PortKind("MT4129", "MT_0000000838", "InfiniBand", "0")
STORAGE = PortKind("MT4125", "MT_0000000359", "Ethernet", "0")


def port(
    number: int,
    state: int = ACTIVE,
    phys: int = 5,
    kind: PortKind = KIND,
    rate: float = 400.0,
    path: tuple[str, ...] = (),
) -> Port:
    return Port(
        f"mlx5_{number}", 1, "", path, kind, state, "", phys, "", rate, 4, f"{rate:g} Gb/sec", virtual_function=False
    )


GPUS = [(f"r{number}", f"g{number}") for number in range(8)]


def severity(ports: list[Port], gpus: int = 8, been_up: bool = False, which: int = 0) -> Severity | None:
    return severity_if_down(ports[which], node_ports(ports, GPUS[:gpus]), been_up, False)


POLLING = {"state": 1, "phys": 2}
DOWN = {"state": 1, "phys_state": 2}


def test_one_of_eight_is_down() -> None:
    beside = [port(number, path=(f"r{number}", f"n{number}")) for number in range(8)]
    assert severity([beside[0]._replace(**DOWN), *beside[1:]]) is Severity.CRITICAL


def test_where_places_tell_nothing_the_past_does() -> None:
    ports = [port(0, **POLLING), *map(port, range(1, 8))]
    assert severity(ports) is Severity.WARNING
    assert severity(ports, been_up=True) is Severity.CRITICAL


def test_of_two_ports_beside_a_gpu_the_one_in_the_usual_slot_is_needed() -> None:
    rails = [port(number, path=(f"r{number}", f"s{number}:02.0", f"n{number}")) for number in range(8)]
    storage = port(8, path=("r0", "s0:03.0", "n8"))
    assert severity([rails[0]._replace(**DOWN), *rails[1:], storage]) is Severity.CRITICAL
    assert severity([storage._replace(**DOWN), *rails], been_up=True) is Severity.WARNING
    assert severity([storage._replace(**DOWN), *rails]) is None


def test_a_ninth_port_is_spare() -> None:
    ports = [port(0, **POLLING), *map(port, range(1, 9))]
    assert severity(ports) is None
    assert severity(ports, been_up=True) is Severity.WARNING


def test_a_port_with_a_cable_and_no_subnet_manager_is_never_spare() -> None:
    assert severity([port(0, state=2), *map(port, range(1, 9))]) is Severity.CRITICAL


def test_all_ports_down() -> None:
    ethernet = PortKind("MT4129", "", "Ethernet", "0")
    assert severity([port(number, **POLLING) for number in range(8)]) is Severity.CRITICAL
    assert severity([port(number, **POLLING, kind=ethernet) for number in range(8)]) is Severity.CRITICAL
    assert severity([port(0, **POLLING, kind=ethernet)], gpus=1) is Severity.WARNING
    assert severity([port(0, **POLLING, kind=ethernet)], gpus=0) is None


def test_the_second_ports_of_storage_cards_may_be_empty() -> None:
    second = STORAGE._replace(function="1")
    ports = [port(8, **POLLING, kind=second), port(9, kind=STORAGE), *map(port, range(8))]
    assert severity(ports) is None


def test_the_compute_kind_is_the_kind_nearest_to_the_gpus() -> None:
    beside = [port(number, kind=STORAGE, rate=100.0, path=(f"r{number}", f"n{number}")) for number in range(8)]
    elsewhere = [port(10 + number, path=("x", f"y{number}")) for number in range(8)]
    assert node_ports([*elsewhere, *beside], GPUS).compute_kind == STORAGE
    assert node_ports([*elsewhere, *beside], []).compute_kind == KIND


def test_the_nearest_port_has_a_bridge_in_common() -> None:
    near, far = port(0, path=("r0", "n0")), port(1, path=("r1", "n1"))
    assert nearest_ports(("r0", "g0"), [near, far]) == (near,)
    assert nearest_ports(("r2", "g2"), [near, far]) == ()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=12), st.integers(0, 8))
def test_any_ports_can_be_judged(states: list[tuple[int, int, bool]], gpus: int) -> None:
    ports = [port(number, state, phys, KIND if mine else STORAGE) for number, (state, phys, mine) in enumerate(states)]
    node = node_ports(ports, GPUS[:gpus])
    assert (node.compute_kind is None) == (not ports)
    for one in ports:
        for been_up in (False, True):
            assert severity_if_down(one, node, been_up, False) in (None, Severity.WARNING, Severity.CRITICAL)


# Files that cannot be read

Machine = Callable[[str], Path]


PORT = "sys/class/infiniband/mlx5_3/ports/1"
ROCE = ", ".join(f"mlx5_{number}" for number in (0, 2, 3, 4, 5, 7, 8, 9))
DAMAGE = {"empty": b"", "binary": b"\x7fELF\0\xff", "words": b"no such thing\n", "huge": b"9" * 5_000_000}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("probe", "path"),
    [
        ("rdma_ports", f"{PORT}/state"),
        ("rdma_ports", f"{PORT}/phys_state"),
        ("rdma_ports", f"{PORT}/rate"),
        ("rdma_net", f"{PORT}/gids/0"),
        ("rdma_net", "sys/class/net/enp77s0np0/mtu"),
        ("roce_pfc", "laggard/pfc.json"),
    ],
)
def test_a_damaged_file_is_unknown_and_named(
    probe: str, path: str, damage: str, copy_of: Machine, check: Check
) -> None:
    root = copy_of("hgx_h100_nics")
    (root / path).write_bytes(DAMAGE[damage])
    document = check(root, probe)
    (result,) = document["probes"]
    assert result["verdict"] == "unknown" and document["findings"] == []
    assert path.rpartition("/")[2].removesuffix(".json") in result["reason"] or "mlx5_3" in result["reason"]


def test_other_ports_are_judged_beside_one_that_cannot_be_read(copy_of: Machine, check: Check) -> None:
    root = copy_of("rdma_port_down")
    (root / "sys/class/infiniband/mlx5_0/ports/1/state").unlink()
    document = check(root, "rdma_ports")
    (result,) = document["probes"]
    assert result["verdict"] == "fail" and "mlx5_0/ports/1/state" in result["reason"]
    assert [finding["device"] for finding in document["findings"]] == ["mlx5_3"]


def test_counters_that_cannot_be_read_are_facts(copy_of: Machine, check: Check) -> None:
    root = copy_of("hgx_h100_nics")
    path = root / PORT / "hw_counters/out_of_sequence"
    path.unlink()
    path.mkdir()  # reading it fails, as EINVAL does
    document = check(root, "rdma_errors")
    (result,) = document["probes"]
    assert result["verdict"] == "ok"
    assert document["facts"]["rdma_errors"]["not_readable"] == {"mlx5_3": ["hw_counters/out_of_sequence"]}


def test_a_port_without_any_counter_is_unknown(copy_of: Machine, check: Check) -> None:
    root = copy_of("hgx_h100_nics")
    for folder in ("counters", "hw_counters"):
        shutil.rmtree(root / PORT / folder)
    (root / "sys/class/net/enp77s0np0/carrier_down_count").unlink()
    (result,) = check(root, "rdma_errors")["probes"]
    assert result["verdict"] == "unknown" and "mlx5_3" in result["reason"]


def test_the_first_run_reports_that_there_is_no_snapshot(copy_of: Machine, check: Check) -> None:
    document = check(copy_of("hgx_h100_nics"), "rdma_errors")
    assert document["facts"]["rdma_errors"]["last_look"].startswith("no earlier snapshot")


@pytest.mark.parametrize("probe", PROBES)
def test_without_a_readable_sys_it_is_unknown(probe: str, tmp_path: Path, check: Check) -> None:
    (result,) = check(tmp_path, probe)["probes"]
    assert result["verdict"] == "unknown"


@pytest.mark.parametrize("probe", PROBES)
def test_a_machine_without_nics_is_skipped_with_the_reason(probe: str, copy_of: Machine, check: Check) -> None:
    (result,) = check(copy_of("plain"), probe)["probes"]
    assert result["verdict"] == "skipped" and "PCI bus" in result["reason"]


@pytest.mark.parametrize("probe", PROBES)
def test_software_devices_are_no_hardware(probe: str, copy_of: Machine, check: Check) -> None:
    root = copy_of("plain")
    device = root / "sys/devices/virtual/infiniband/rxe0"
    (device / "ports/1").mkdir(parents=True)
    (device / "ports/1/state").write_text("1: DOWN\n")
    (root / "sys/class/infiniband").mkdir(parents=True)
    (root / "sys/class/infiniband/rxe0").symlink_to("../../devices/virtual/infiniband/rxe0")
    document = check(root, probe)
    (result,) = document["probes"]
    assert result["verdict"] == "skipped" and document["findings"] == []


def profile(root: Path, text: str) -> list[str]:
    path = root.parent / "profile.yaml"
    path.write_text(text)
    return ["--profile", str(path)]


@pytest.mark.parametrize(
    ("text", "code", "device"),
    [
        ("rdma_devices: {expected: 11}", "RDMA_DEVICE_MISSING", "RDMA devices"),
        ('rdma_devices: {names: {mlx5_0: "0000:3c:00.0"}}', "RDMA_RENAMED", "mlx5_0"),
        ("rdma_ports: {least_gigabits: 800}", "RDMA_RATE_LOW", "mlx5_0"),
        ("roce_pfc: {expect: 'off'}", "PFC_OFF", ROCE),
    ],
)
def test_an_expectation_of_the_profile_that_fails_is_a_finding(
    text: str, code: str, device: str, copy_of: Machine, check: Check
) -> None:
    root = copy_of("hgx_h100_nics")
    words = profile(root, f"thresholds:\n  {text}\n")
    found = check(root, text.partition(":")[0], *words)["findings"][0]
    assert (found["code"], found["device"]) == (code, device)


@pytest.mark.parametrize("text", ["rdma_ports: {expected: ['mlx5_[01]']}", "rdma_ports: {ignore: [mlx5_3]}"])
def test_devices_left_out_by_the_profile_are_not_judged(text: str, copy_of: Machine, check: Check) -> None:
    root = copy_of("rdma_port_down")
    words = profile(root, f"thresholds:\n  {text}\n")
    document = check(root, "rdma_ports", *words)
    assert (document["status"], document["findings"]) == (0, [])


def test_a_port_that_the_profile_names_must_be_active(copy_of: Machine, check: Check) -> None:
    root = copy_of("rdma_port_spare")
    words = profile(root, "thresholds:\n  rdma_ports: {expected: ['mlx5_*']}\n")
    document = check(root, "rdma_ports", *words)
    assert (document["status"], document["findings"][0]["device"]) == (1, "mlx5_1")
