"""Masks what shows whose machine a recording is of: names, addresses, serial numbers.

The same text gets the same mask everywhere, so that related values stay related. The key is thrown away, so that nobody
can find a MAC address by trying all of them. Zeros, loopback addresses and the prefixes that probes judge by are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Collection
from typing import Final

_HEX: Final = "0-9a-fA-F"
_GUID: Final = rf"[{_HEX}]{{4}}(?::[{_HEX}]{{4}}){{3}}"
_PATTERN: Final = re.compile(
    "|".join(
        (
            rf"(?P<gid>(?<![{_HEX}:]){_GUID}:{_GUID}(?![{_HEX}:]))",
            rf"(?P<guid>(?<![{_HEX}:]){_GUID}(?![{_HEX}:]))",
            rf"(?P<mac>(?<![{_HEX}:])[{_HEX}]{{2}}(?::[{_HEX}]{{2}}){{5,19}}(?![{_HEX}:]))",
            rf"(?P<uuid>(?<![{_HEX}])[{_HEX}]{{8}}(?:-[{_HEX}]{{4}}){{3}}-[{_HEX}]{{12}}(?![{_HEX}]))",
            r"(?P<ipv4>(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]))",
            r"(?P<serial>(?<=[Ss]erial)(?:\s*[Nn]umber|No)?\W{1,4}[0-9A-Z]{6,24}\b)",
            r"(?P<home>(?<=/home/)[^/\s\"]+)",
        )
    )
)
_LINK_LOCAL: Final = "fe80:0000:0000:0000"
_MAPPED: Final = "0000:0000:0000:0000:0000:ffff:"  # an IPv4 address within a GID


class Mask:
    """Masks texts. `names`: host names to mask wherever they stand alone; `key`: of the hash, random by default."""

    def __init__(self, names: Collection[str], key: bytes | None = None) -> None:
        self._key = os.urandom(32) if key is None else key
        known = sorted({name for name in names if len(name) > 1 and name != "localhost"}, key=len, reverse=True)
        self._names = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, known))})(?![\w-])") if known else None

    def text(self, text: str) -> str:
        """`text` with everything masked."""
        text = _PATTERN.sub(lambda found: self._mask(str(found.lastgroup), found[0]), text)
        return self._names.sub(lambda found: self.name(found[0]), text) if self._names else text

    def name(self, name: str) -> str:
        """The mask of a host name."""
        return f"node-{self._digits(name, 6)}"

    def _mask(self, kind: str, text: str) -> str:
        if kind == "gid":
            return self._gid(text)
        if kind == "ipv4":
            return self._ipv4(text)
        if kind == "serial":
            number = re.split(r"\W", text)[-1]
            return text[: -len(number)] + self._digits(number, len(number)).upper()
        if kind == "home":
            return f"user-{self._digits(text, 6)}"
        return self._hex(text)

    def _hex(self, text: str) -> str:
        """Replaces each hexadecimal digit. All zeros mean that there is no address, and are kept; so are all ones, the
        broadcast address."""
        digits = re.sub(rf"[^{_HEX}]", "", text).lower()
        if not digits.strip("0") or not digits.strip("f"):
            return text
        new = iter(self._digits(digits, len(digits)))
        return "".join(next(new) if re.match(f"[{_HEX}]", letter) else letter for letter in text)

    def _gid(self, text: str) -> str:
        """Masks the prefix and the interface separately: the interface is a GUID that also occurs alone."""
        if text.lower().startswith(_MAPPED):
            number = int(text.replace(":", "")[-8:], 16)
            masked = int(ipaddress.IPv4Address(self._ipv4(str(ipaddress.IPv4Address(number)))))
            return text[: len(_MAPPED)] + f"{masked >> 16:04x}:{masked & 0xFFFF:04x}"
        prefix, interface = text[:19], text[20:]
        return f"{prefix if prefix.lower() == _LINK_LOCAL else self._hex(prefix)}:{self._hex(interface)}"

    def _ipv4(self, text: str) -> str:
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:  # a version number
            return text
        if (
            address.is_loopback
            or address.is_unspecified
            or address.is_link_local
            or not 0 < int(text.split(".")[0]) < 224
        ):
            return text
        first = bytes.fromhex(self._digits(text, 6))
        return f"10.{first[0]}.{first[1]}.{first[2]}"

    def _digits(self, text: str, count: int) -> str:
        return hmac.new(self._key, text.lower().encode(), hashlib.sha512).hexdigest()[:count]
