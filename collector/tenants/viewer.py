"""Decides who asks: an operator, who sees everything, or a user, who sees their own jobs. Nobody else is answered."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

from laggard.collector.settings import CollectorSettings
from laggard.collector.tenants.peers import CERTIFICATE, Peer, PeerList
from laggard.collector.tenants.users import Users
from laggard.errors import UsageError
from laggard.text.words import printable_line

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
