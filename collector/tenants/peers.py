"""The peer at the other end of a connection, and lists of those who are trusted."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from laggard.errors import UsageError

CERTIFICATE: Final = "certificate:"
"""The beginning of the entries of a list that are names in a certificate."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peer(NamedTuple):
    """The other end of a connection. `names` are the DNS names of its verified certificate (subjectAltName),
    `common_name` the one in its subject; empty without a certificate, and where there are several common names."""

    address: str
    names: tuple[str, ...] = ()
    common_name: str = ""


def peer_of(address: str, certificate: Mapping[str, Any] | None) -> Peer:
    """`certificate`: what ssl says of the peer's, verified; None or empty: it showed none."""
    shown = certificate or {}
    # An authority that writes users' e-mail addresses or URIs into certificates has not said that they are these hosts.
    names = tuple(str(name) for kind, name in shown.get("subjectAltName", ()) if kind == "DNS")
    common = [value for part in shown.get("subject", ()) for name, value in part if name == "commonName"]
    return Peer(address, names, str(common[0]) if len(common) == 1 else "")


class PeerList(NamedTuple):
    """Peers by address, and by a name in their certificate, where `*.DOMAIN` stands for all names one level below."""

    networks: tuple[_Network, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str], setting: str) -> PeerList:
        """Parses addresses, networks (10.0.0.0/8) and `certificate:NAME`. Raises UsageError, which names `setting`."""
        networks: list[_Network] = []
        names: list[str] = []
        for entry in entries:
            if name := _certificate_name(entry, setting):
                names.append(name)
                continue
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError:
                text = f"{setting}: {entry!r} is no address, no network such as 10.0.0.0/8, and no {CERTIFICATE}NAME"
                raise UsageError(text) from None
        return cls(tuple(networks), tuple(names))

    def has(self, peer: Peer) -> bool:
        return self._has_address(peer.address) or any(_matches(name, it) for name in peer.names for it in self.names)

    def _has_address(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:  # a socket that listens for both
            address = address.ipv4_mapped
        return any(address.version == network.version and address in network for network in self.networks)


def _certificate_name(entry: str, setting: str) -> str:
    """The name in an entry of that kind; empty for another entry."""
    if not entry.startswith(CERTIFICATE):
        return ""
    name = entry.removeprefix(CERTIFICATE)
    if not name or name in ("*", "*."):
        raise UsageError(f"{setting}: {entry!r} names no certificate; write {CERTIFICATE}NAME")
    return name


def _matches(name: str, wanted: str) -> bool:
    if wanted.startswith("*."):
        label, _, domain = name.partition(".")
        return bool(label) and domain.lower() == wanted[2:].lower()
    return name.lower() == wanted.lower()
