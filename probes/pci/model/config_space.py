"""Parses PCI configuration space to named registers. Pure, and every byte string has a result.

Offsets and bits: the PCI Express Base Specification, 7.5 and 7.7.11, as in Linux' include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

STANDARD_BYTES: Final = 256
_SIZE: Final = 4096
_EXPRESS_ID, _ACS_ID, _ATS_ID = 0x10, 0x000D, 0x000F
_EXPRESS_BYTES: Final = 0x34

SPEEDS: Final = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Speed in GT/s by the number in the link registers."""

ACS_BITS: Final = {
    0x01: "SrcValid",
    0x02: "TransBlk",
    0x04: "ReqRedir",
    0x08: "CmpltRedir",
    0x10: "UpstreamFwd",
    0x20: "EgressCtrl",
    0x40: "DirectTrans",
}
"""Names of the bits of the ACS control register, as lspci has them."""

SOURCE_VALID, TRANSLATION_BLOCK, REQUEST_REDIRECT, COMPLETION_REDIRECT, UPSTREAM_FORWARD, EGRESS, DIRECT = ACS_BITS


class PciExpress(NamedTuple):
    """The PCI Express capability. Speeds in GT/s, 0.0 where the number is reserved; request sizes in bytes."""

    speed: float
    width: int
    max_speed: float
    max_width: int
    target_speed: float
    payload_bytes: int
    read_request_bytes: int


class ConfigSpace(NamedTuple):
    """The registers of a device. None: the device has no such capability. Where `extended_known` is false, it is not
    known whether it has ACS and ATS."""

    responds: bool = True
    """False: every bit reads as one, as those of a device do that fell off the bus."""

    standard_known: bool = True
    extended_known: bool = True
    express: PciExpress | None = None
    acs: int | None = None
    """The ACS control register."""

    ats_enabled: bool | None = None


NOT_READ: Final = ConfigSpace(standard_known=False, extended_known=False)
NO_ANSWER: Final = NOT_READ._replace(responds=False)


def parse_config(data: bytes) -> ConfigSpace:
    """Parses `data`: 4096 bytes, the 256 of a device that is not PCI Express, or as few as could be read."""
    if len(data) < 4 or data.startswith(b"\xff\xff"):
        return NO_ANSWER
    standard_known = len(data) >= STANDARD_BYTES
    express = _express(data) if standard_known else None
    extended = dict(_extended(data))
    ats = _control(data, extended.get(_ATS_ID))
    return ConfigSpace(
        standard_known=standard_known,
        extended_known=len(data) > STANDARD_BYTES or (standard_known and express is None),
        express=express,
        acs=_control(data, extended.get(_ACS_ID)),
        ats_enabled=None if ats is None else bool(ats & 0x8000),
    )


def read_needed_bytes(read: Callable[[int, int], bytes]) -> bytes:
    """Reads the parts that parse_config() needs and returns them with zeros in between. `read` takes an offset and a
    size.

    A device needs a microsecond or two for each word, so that to read all of its space takes milliseconds.
    """
    data = bytearray(read(0, STANDARD_BYTES))
    if len(data) < STANDARD_BYTES:
        return bytes(data)
    first = read(STANDARD_BYTES, 4)
    if len(first) < 4:
        return bytes(data)
    data.extend(bytes(_SIZE - STANDARD_BYTES))
    data[STANDARD_BYTES : STANDARD_BYTES + 4] = first
    for number, offset in _extended(data, lambda at: _fetch(data, read, at)):
        if number in (_ACS_ID, _ATS_ID):
            _fetch(data, read, offset + 4)
    return bytes(data)


def _fetch(data: bytearray, read: Callable[[int, int], bytes], offset: int) -> None:
    word = read(offset, 4)
    data[offset : offset + len(word)] = word


def _standard(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields (id, offset) of the capabilities in the first 256 bytes."""
    if not data[0x06] & 0x10:  # status: there is a list
        return
    offset, visited = data[0x34] & 0xFC, set[int]()  # a list that leads back to itself ends
    while offset >= 0x40 and offset not in visited:
        visited.add(offset)
        yield data[offset], offset
        offset = data[offset + 1] & 0xFC


def _extended(data: bytes | bytearray, fetch: Callable[[int], None] = lambda at: None) -> Iterator[tuple[int, int]]:
    """Yields (id, offset) of the extended capabilities; `fetch` is called with an offset before its word is used."""
    offset, visited = STANDARD_BYTES, set[int]()
    while STANDARD_BYTES <= offset <= len(data) - 8 and offset not in visited:
        visited.add(offset)
        fetch(offset)
        (header,) = struct.unpack_from("<I", data, offset)
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, offset
        offset = header >> 20 & 0xFFC


def _express(data: bytes) -> PciExpress | None:
    offset = dict(_standard(data)).get(_EXPRESS_ID)
    if offset is None or offset + _EXPRESS_BYTES > len(data):
        return None
    (control,) = struct.unpack_from("<H", data, offset + 8)
    capable, _, status = struct.unpack_from("<IHH", data, offset + 0xC)
    (target,) = struct.unpack_from("<H", data, offset + 0x30)
    return PciExpress(
        speed=SPEEDS.get(status & 0xF, 0.0),
        width=status >> 4 & 0x3F,
        max_speed=SPEEDS.get(capable & 0xF, 0.0),
        max_width=capable >> 4 & 0x3F,
        target_speed=SPEEDS.get(target & 0xF, 0.0),
        payload_bytes=128 << (control >> 5 & 7),
        read_request_bytes=128 << (control >> 12 & 7),
    )


def _control(data: bytes, offset: int | None) -> int | None:
    """Returns the control register of ACS or ATS."""
    return None if offset is None else int.from_bytes(data[offset + 6 : offset + 8], "little")


def acs_names(bits: int) -> list[str]:
    """Returns the names of the set bits, as lspci writes them: ReqRedir+ ..."""
    return [f"{name}+" for bit, name in ACS_BITS.items() if bits & bit]
