"""Parsers of configuration space and `lspci`: registers of made-up devices, and "not known" for anything else."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from support.config_space import ROOT_PORT, Device, Link, config_space
from support.paths import DATA

from laggard.diagnose.lspci import judge_pci_tree, unjudged_parts
from laggard.diagnose.lspci_output import parse_lspci
from laggard.probes.pci.model.config_space import parse_config, read_needed_bytes

SPEEDS = {"2.5": 2.5, "5.0": 5.0, "8.0": 8.0, "16.0": 16.0, "32.0": 32.0}
SIZES = st.sampled_from([128, 256, 512, 1024, 2048, 4096])
LINKS = st.builds(
    Link, st.sampled_from(sorted(SPEEDS)), st.integers(1, 32), st.sampled_from(sorted(SPEEDS)), st.integers(1, 32)
)
DEVICES = st.builds(
    Device,
    st.integers(1, 0xFFFE),
    st.integers(0, 0xFFFF),
    st.just(0x060400),
    st.sampled_from([0, 4, 5, 6]),
    LINKS,
    revision=st.just(0),
    subsystem=st.just((0, 0)),
    payload=SIZES,
    max_payload=SIZES,
    read_request=SIZES,
    acs=st.none() | st.tuples(st.integers(0, 0x7F), st.integers(0, 0x7F)),
    ats=st.none() | st.booleans(),
)


@given(DEVICES)
def test_registers_are_parsed_as_they_were_written(device: Device) -> None:
    config = parse_config(config_space(device, (0, 1, 2)))
    assert config.express and device.link
    assert (config.express.speed, config.express.width) == (SPEEDS[device.link.speed], device.link.width)
    assert config.express.max_speed == config.express.target_speed == SPEEDS[device.link.max_speed]
    assert config.express.max_width == device.link.max_width
    assert config.express.read_request_bytes == device.read_request
    assert config.express.payload_bytes == device.payload
    assert config.acs == (device.acs[1] if device.acs else None)
    assert config.ats_enabled is device.ats
    assert config.responds and config.extended_known


@given(DEVICES, st.integers(0, 4096))
def test_a_part_of_the_space_leaves_registers_unknown_and_none_wrong(device: Device, size: int) -> None:
    config = parse_config(config_space(device, (0, 1, 2))[:size])
    assert config.extended_known is (size > 256)
    if size < 256:
        assert config.express is None and not config.standard_known
    assert config.acs in (None, (device.acs or (0, 0))[1])


@given(DEVICES)
def test_the_few_words_that_are_read_give_the_same_registers(device: Device) -> None:
    data = config_space(device, (0, 1, 2))
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
@example(config_space(Device(1, 1, 0x060400, ROOT_PORT, Link("2.5", 1)), (0, 1, 1))[:256] + b"\x0d\x00\x01\x10" * 960)
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
