"""Decides who asks, by their connection and the user database: an operator, who sees everything, or a user, who sees
their own jobs. Nobody else is answered."""

from __future__ import annotations

import contextlib
import grp
import ipaddress
import math
import os
import pwd
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

from laggard.collector.settings import CollectorSettings
from laggard.kit.address import ip_of
from laggard.kit.errors import UsageError
from laggard.kit.words import printable_line

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
        address = ip_of(text)  # of a socket that listens for both it may be an IPv4 address within IPv6
        return address is not None and any(address in network for network in self.networks)


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


_KEPT_SECONDS: Final = 60.0
_MAX_KEPT: Final = 4096


class User(NamedTuple):
    uid: int
    groups: tuple[str, ...] = ()


class NotLookedUp(Exception):
    """The user database has to be asked first (Users.look_up), which may take long: it can be on the network."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Users:
    """The users by name, for use from threads. What the user database said is kept for a minute."""

    def __init__(self, uids: Mapping[str, int], domain: str) -> None:
        """`uids` go before the user database. Of names that end with @`domain` that is left out."""
        self._uids, self._domain = uids, domain
        self._kept: dict[str, tuple[float, User | None]] = {}
        self._lock = threading.Lock()

    def local(self, name: str) -> str:
        """The name as this machine knows it."""
        return name.removesuffix(f"@{self._domain}") if self._domain else name

    def find(self, name: str) -> User | None:
        """None for a name that is nobody's. Raises NotLookedUp."""
        with self._lock:
            until, found = self._kept.get(name, (-math.inf, None))
        if time.monotonic() >= until:
            raise NotLookedUp(name)
        return found

    def look_up(self, name: str) -> None:
        """Asks the user database, and waits for it."""
        found = self._of_database(name)
        with self._lock:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[name] = time.monotonic() + _KEPT_SECONDS, found

    def _of_database(self, name: str) -> User | None:
        local = self.local(name)
        listed = self._uids.get(name, self._uids.get(local))
        try:
            entry = pwd.getpwnam(local)
        except (KeyError, ValueError, UnicodeError):
            return None if listed is None else User(listed)
        return User(entry.pw_uid if listed is None else listed, _groups(entry))


def _groups(entry: pwd.struct_passwd) -> tuple[str, ...]:
    names = []
    with contextlib.suppress(OSError):
        for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
            with contextlib.suppress(KeyError):  # a group without a name
                names.append(grp.getgrgid(gid).gr_name)
    return tuple(names)


_GROUP: Final = "@"
"""The beginning of the entries of `operators` that are groups."""

_MAX_NAME_CHARACTERS: Final = 256
_MAX_SHOWN: Final = 64

_LOG_IN: Final = "say who you are: ask through the site's proxy, or show a certificate that names you"


class Viewer(NamedTuple):
    """`uid` None: an operator. `name` is how the user was called."""

    uid: int | None
    name: str

    @property
    def is_operator(self) -> bool:
        return self.uid is None


class NotAdmitted(Exception):
    """The client is not told anything. The text is one line that says what to do."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class RequestHeaders(Protocol):
    def getlist(self, key: str) -> list[str]: ...


class Admission:
    """The admission of viewers by the settings `tenant_*`, `trusted_proxies`, `operators` and `gate_clients`."""

    def __init__(self, settings: CollectorSettings) -> None:
        """Raises UsageError where one of them is wrong."""
        _check(settings)
        self._header, self._groups_header = settings.tenant_header, settings.tenant_groups_header
        self._certificates = settings.tenant_certificates
        self._proxies = PeerList.parse(settings.trusted_proxies, "trusted_proxies")
        self._gates = PeerList.parse(settings.gate_clients, "gate_clients")
        by_certificate = {entry for entry in settings.operators if entry.startswith(CERTIFICATE)}
        groups = {entry for entry in settings.operators if entry.startswith(_GROUP)}
        self._operator_peers = PeerList.parse(by_certificate, "operators")
        self._operator_groups = frozenset(entry.removeprefix(_GROUP) for entry in groups) - {""}
        self._operators = frozenset(settings.operators) - groups - by_certificate
        self._users = Users(settings.tenant_users, settings.tenant_domain)

    @property
    def needs_certificates(self) -> bool:
        """Whether clients' certificates have to be verified for this to work."""
        return self._certificates or bool(self._proxies.names or self._gates.names or self._operator_peers.names)

    def is_gate(self, peer: Peer) -> bool:
        """Whether the client may ask what the gate asks, and that alone."""
        return self._gates.has(peer)

    def viewer(self, peer: Peer, headers: RequestHeaders) -> Viewer:
        """The viewer who asks. Raises NotAdmitted, and NotLookedUp where look_up() has to be called first."""
        if self._header and self._proxies.has(peer):
            return self._named_by_proxy(headers)
        for header in filter(None, (self._header, self._groups_header)):
            if headers.getlist(header):
                text = f"{header} is believed from trusted_proxies alone: ask through the site's proxy"
                raise NotAdmitted(HTTPStatus.FORBIDDEN, text)
        if self._operator_peers.has(peer):
            return Viewer(None, peer.names[0])
        if self._certificates and (peer.names or peer.common_name):
            if not peer.common_name:
                raise NotAdmitted(HTTPStatus.FORBIDDEN, "the certificate has not one common name, which is the user's")
            return self._named(peer.common_name, None)
        raise NotAdmitted(HTTPStatus.UNAUTHORIZED, _LOG_IN)

    def look_up(self, name: str) -> None:
        """Asks the user database for a name, and waits for it."""
        self._users.look_up(name)

    def _named_by_proxy(self, headers: RequestHeaders) -> Viewer:
        name = _only(headers, self._header)
        if not name:
            text = f"the proxy names nobody in {self._header}: log in there"
            raise NotAdmitted(HTTPStatus.UNAUTHORIZED, text)
        groups = None
        if self._groups_header:
            groups = tuple(group.strip(" \t") for group in _only(headers, self._groups_header).split(","))
        return self._named(name, groups)

    def _named(self, name: str, groups: Sequence[str] | None) -> Viewer:
        """`groups`: those that the proxy tells; None: the user database's count."""
        if len(name) > _MAX_NAME_CHARACTERS or not name.isprintable():
            raise NotAdmitted(HTTPStatus.FORBIDDEN, "the user's name is too long, or holds what no name does")
        local = self._users.local(name)
        if self._operators & {name, local}:
            return Viewer(None, local)
        user = self._users.find(name)
        if groups is None:
            groups = user.groups if user else ()
        if self._operator_groups.intersection(groups):
            return Viewer(None, local)
        if user is None:
            text = (
                f"no user {printable_line(name, _MAX_SHOWN)} is known here: ask an operator to add it to tenant_users"
            )
            raise NotAdmitted(HTTPStatus.FORBIDDEN, text)
        return Viewer(user.uid, local)


def _only(headers: RequestHeaders, name: str) -> str:
    """The value of the header; empty where there is none. Raises NotAdmitted where there are several."""
    values = headers.getlist(name)
    if len(values) > 1:
        text = f"there are {len(values)} headers {name}: the proxy has to replace what a client sends"
        raise NotAdmitted(HTTPStatus.FORBIDDEN, text)
    return values[0].strip(" \t") if values else ""  # not what Unicode takes for a space as well


def _check(settings: CollectorSettings) -> None:
    """Raises UsageError where the settings contradict one another."""
    for name in ("trusted_proxies", "gate_clients"):
        PeerList.parse(getattr(settings, name), name)  # first: what is wrong by itself
    if not settings.shows_tenants_their_own:
        for name in ("operators", "trusted_proxies", "gate_clients", "tenant_users", "tenant_domain"):
            if getattr(settings, name):
                text = f"{name} has no effect without tenant_header or tenant_certificates: give one of them"
                raise UsageError(text)
    if bool(settings.tenant_header) != bool(settings.trusted_proxies):
        text = "without a proxy that is trusted anybody could send the header"
        raise UsageError(f"tenant_header and trusted_proxies belong together: {text}")
    if settings.tenant_groups_header and not settings.tenant_header:
        raise UsageError("tenant_groups_header needs tenant_header: groups are those of the user that it names")
    for header in filter(None, (settings.tenant_header, settings.tenant_groups_header)):
        if not (header.isascii() and header.replace("-", "").replace("_", "").isalnum()):
            raise UsageError(f"{header!r} is no name of a header: write letters, digits and hyphens")
    for name, uid in settings.tenant_users.items():
        if not 0 <= uid < 2**32:
            raise UsageError(f"tenant_users: {uid} of {printable_line(name, _MAX_SHOWN)} is no uid")
