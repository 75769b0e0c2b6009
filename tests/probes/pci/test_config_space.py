"""Parsers of configuration space and `lspci`: registers of made-up devices, and "not known" for anything else."""

import struct
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st
from support.paths import DATA

from laggard.diagnose.lspci import judge_pci_tree, parse_lspci, unjudged_parts
from laggard.probes.pci.model.config_space import parse_config, read_needed_bytes

SPEEDS = {"2.5": 2.5, "5.0": 5.0, "8.0": 8.0, "16.0": 16.0, "32.0": 32.0}
GENERATIONS = {speed: number for number, speed in enumerate(SPEEDS, 1)}
SIZES = st.sampled_from([128, 256, 512, 1024, 2048, 4096])
PM, EXPRESS, AER, ACS, ATS = 0x40, 0x60, 0x100, 0x170, 0x200


class Bridge(NamedTuple):
    """Speeds in GT/s as sysfs prints them, without the unit. `acs`: capability and control; None: it has none. `ats`:
    whether it is enabled; None: it has no such capability."""

    vendor: int
    device: int
    port: int
    speed: str
    width: int
    max_speed: str
    max_width: int
    payload: int = 256
    max_payload: int = 512
    read_request: int = 512
    acs: tuple[int, int] | None = None
    ats: bool | None = None


def config_space(bridge: Bridge) -> bytes:
    """Offsets: include/uapi/linux/pci_regs.h."""
    data = bytearray(4096)
    struct.pack_into("<HHHHI", data, 0, bridge.vendor, bridge.device, 0x0406, 0x0010, 0x06040000)
    data[0x0E], data[0x34] = 1, PM
    data[0x18:0x1B] = bytes((0, 1, 2))  # its buses
    struct.pack_into("<BBHH", data, PM, 0x01, EXPRESS, 3, 0x0008)
    generation = GENERATIONS[bridge.max_speed]
    control = 0x0010 | power(bridge.payload) << 5 | power(bridge.read_request) << 12 | 0x0F
    status = GENERATIONS[bridge.speed] | bridge.width << 4 | 0x1000 | (0x2000 if bridge.port in (4, 6) else 0)
    struct.pack_into("<BBH", data, EXPRESS, 0x10, 0, 0x2 | bridge.port << 4)
    struct.pack_into("<IHH", data, EXPRESS + 4, power(bridge.max_payload), control, 0)
    struct.pack_into("<IHH", data, EXPRESS + 0xC, generation | bridge.max_width << 4, 0, status)
    struct.pack_into("<IH", data, EXPRESS + 0x2C, ((1 << generation) - 1) << 1, generation)
    chain = [(AER, 0x0001, 2)]
    if bridge.acs:
        chain.append((ACS, 0x000D, 1))
        struct.pack_into("<HH", data, ACS + 4, *bridge.acs)
    if bridge.ats is not None:
        chain.append((ATS, 0x000F, 1))
        struct.pack_into("<HH", data, ATS + 4, 0x0020, 0x8000 if bridge.ats else 0)
    for (offset, number, version), (following, _, _) in zip(chain, [*chain[1:], (0, 0, 0)], strict=True):
        struct.pack_into("<I", data, offset, number | version << 16 | following << 20)
    return bytes(data)


def power(size: int) -> int:
    """The code of a size: 0 for 128 bytes, 1 for 256, and so on."""
    return size.bit_length() - 8


LINK = st.sampled_from(sorted(SPEEDS)), st.integers(1, 32)
BRIDGES = st.builds(
    Bridge,
    *(st.integers(1, 0xFFFE), st.integers(0, 0xFFFF), st.sampled_from([0, 4, 5, 6]), *LINK, *LINK),
    *(SIZES, SIZES, SIZES),
    st.none() | st.tuples(st.integers(0, 0x7F), st.integers(0, 0x7F)),
    st.none() | st.booleans(),
)


@given(BRIDGES)
def test_registers_are_parsed_as_they_were_written(bridge: Bridge) -> None:
    config = parse_config(config_space(bridge))
    assert config.express
    assert (config.express.speed, config.express.width) == (SPEEDS[bridge.speed], bridge.width)
    assert config.express.max_speed == config.express.target_speed == SPEEDS[bridge.max_speed]
    assert config.express.max_width == bridge.max_width
    assert config.express.read_request_bytes == bridge.read_request
    assert config.express.payload_bytes == bridge.payload
    assert config.acs == (bridge.acs[1] if bridge.acs else None)
    assert config.ats_enabled is bridge.ats
    assert config.responds and config.extended_known


@given(BRIDGES, st.integers(0, 4096))
def test_a_part_of_the_space_leaves_registers_unknown_and_none_wrong(bridge: Bridge, size: int) -> None:
    config = parse_config(config_space(bridge)[:size])
    assert config.extended_known is (size > 256)
    if size < 256:
        assert config.express is None and not config.standard_known
    assert config.acs in (None, (bridge.acs or (0, 0))[1])


@given(BRIDGES)
def test_the_few_words_that_are_read_give_the_same_registers(bridge: Bridge) -> None:
    data = config_space(bridge)
    words: list[int] = []

    def read(offset: int, size: int) -> bytes:
        words.append(size)
        return data[offset : offset + size]

    assert parse_config(read_needed_bytes(read)) == parse_config(data)
    assert sum(words) < 400, "a device answers slowly: read no more than is needed"


@given(st.binary(max_size=4096))
@example(b"\xff" * 4096)
@example(b"\xff" * 64)
@example(bytes(4096))
@example(config_space(Bridge(1, 1, 4, "2.5", 1, "2.5", 1))[:256] + b"\x0d\x00\x01\x10" * 960)
def test_any_bytes_can_be_parsed(data: bytes) -> None:
    assert parse_config(read_needed_bytes(lambda offset, size: data[offset : offset + size])).responds is not None
    parse_config(data)


def test_a_device_that_fell_off_the_bus_does_not_respond() -> None:
    assert not parse_config(b"\xff" * 4096).responds


LSPCI = DATA / "lspci"
LINES = st.sampled_from((LSPCI / "lines.txt").read_text().splitlines())


@given(st.text() | st.lists(LINES | st.text(max_size=30), max_size=60).map("\n".join))
def test_any_text_can_be_parsed_as_lspci(text: str) -> None:
    tree = parse_lspci(text)
    assert all(len(tree.path_to_root(device.address)) <= 64 for device in tree)
    found = list(judge_pci_tree(tree))
    assert found or list(unjudged_parts(tree)) or tree.endpoints()


def test_lspci_of_one_switch_with_redirection() -> None:
    text = (LSPCI / "switch_with_redirection.txt").read_text()
    found = [(finding.code, finding.device, finding.severity.value) for finding in judge_pci_tree(parse_lspci(text))]
    assert found == [("ACS_ENABLED", "0000:17:01.0", "critical")]
    assert list(judge_pci_tree(parse_lspci(text.replace("ReqRedir+ CmpltRedir- U", "ReqRedir- CmpltRedir- U")))) == []
    refused = text.replace("\t\tACSC", "\tCapabilities: <access denied>\t\tACSC")
    assert [reason for reason in unjudged_parts(parse_lspci(refused)) if reason.startswith("ACS of 2 bridges")]
