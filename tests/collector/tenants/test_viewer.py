"""Who asks, by the connection and the headers: an operator, a user, or nobody who is answered."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers

from laggard.collector.settings import CollectorSettings
from laggard.collector.tenants import Admission, NotAdmitted, NotLookedUp, Peer, Viewer, peer_of

SETTINGS: dict[str, Any] = {
    "tenant_header": "X-Remote-User",
    "tenant_groups_header": "X-Remote-Groups",
    "tenant_certificates": True,
    "trusted_proxies": ("10.1.0.0/16", "fd00::7", "certificate:proxy.example"),
    "operators": ("ops", "@admins", "certificate:prometheus.example"),
    "tenant_users": {"ada": 61001},
    "tenant_domain": "example.org",
    "gate_clients": ("certificate:*.nodes.example",),
}
PROXY = Peer("10.1.2.3")
ELSEWHERE = Peer("10.2.0.1")


def viewer(peer: Peer, *headers: tuple[str, str], **changes: Any) -> Viewer:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    admission = Admission(CollectorSettings(**{**SETTINGS, **changes}))
    try:
        return admission.viewer(peer, Headers(raw=raw))
    except NotLookedUp as error:
        admission.look_up(error.name)
        return admission.viewer(peer, Headers(raw=raw))


def user(name: str) -> tuple[str, str]:
    return "X-Remote-User", name


@pytest.mark.parametrize(
    "peer", [PROXY, Peer("::ffff:10.1.2.3"), Peer("fd00::7"), Peer("10.2.0.1", ("Proxy.Example",), "whoever")]
)
def test_a_trusted_proxy_is_believed(peer: Peer) -> None:
    assert viewer(peer, user("ada")) == (61001, "ada")


@pytest.mark.parametrize(
    ("headers", "uid"),
    [
        ((user("ada"),), 61001),
        ((user("ada@example.org"),), 61001),
        ((user("nobody"),), 65534),  # of this machine
        ((user("ops"),), None),
        ((user("ops@example.org"),), None),
        ((user("stranger"), ("X-Remote-Groups", "users, admins")), None),
        ((user("ada"), ("X-Remote-Groups", "users, @admins")), 61001),
    ],
)
def test_whom_the_proxy_names(headers: tuple[tuple[str, str], ...], uid: int | None) -> None:
    assert viewer(PROXY, *headers).uid == uid


@pytest.mark.parametrize(
    ("peer", "headers", "status", "words"),
    [
        (ELSEWHERE, (), 401, "say who you are"),
        (PROXY, (), 401, "names nobody in X-Remote-User: log in there"),
        (PROXY, (user(" "),), 401, "names nobody"),
        (PROXY, (user("ada"), user("ops")), 403, "2 headers"),
        (PROXY, (user("eve"), ("X-Remote-Groups", "admins"), ("X-Remote-Groups", "x")), 403, "2 headers X-Remote-G"),
        (PROXY, (user("61001"),), 403, "no user 61001 is known"),
        (
            PROXY,
            (user("ops\xa0"),),
            403,
            "holds what no name does",
        ),  # what Python takes for a space, and a proxy for a letter
        (PROXY, (user("\x85ops"),), 403, "holds what no name does"),
        (PROXY, (user("ada@evil.org"),), 403, "no user ada@evil.org is known"),
        (PROXY, (user("@admins"),), 403, "no user"),
        (PROXY, (user("certificate:prometheus.example"),), 403, "no user"),
        (PROXY, (user("@example.org"),), 403, "no user"),
        (PROXY, (user("a" * 300),), 403, "too long"),
        (ELSEWHERE, (user("ada"),), 403, "believed from trusted_proxies alone"),
        (ELSEWHERE, (("X-Remote-Groups", "admins"),), 403, "believed from trusted_proxies alone"),
        (Peer("::ffff:10.2.0.1"), (user("ops"),), 403, "believed from trusted_proxies alone"),
        (Peer("10.1.2.3.evil.example"), (user("ops"),), 403, "believed from trusted_proxies alone"),
        (ELSEWHERE, (user("ops"), ("X-Forwarded-For", "10.1.2.3")), 403, "believed from trusted_proxies alone"),
        (Peer("", ("prometheus.example",)), (user("ops"),), 403, "believed from trusted_proxies alone"),
        (Peer("", ("x.proxy.example",), "stranger"), (), 403, "no user stranger is known"),
        (Peer("", ("n1.nodes.example",)), (), 403, "not one common name"),
    ],
)
def test_nobody_else_is_answered_and_is_told_why(
    peer: Peer, headers: tuple[tuple[str, str], ...], status: int, words: str
) -> None:
    with pytest.raises(NotAdmitted) as raised:
        viewer(peer, *headers)
    assert raised.value.status == status and words in str(raised.value) and "\n" not in str(raised.value)


def test_a_certificate_names_a_user_or_an_operator() -> None:
    assert viewer(Peer("", (), "ada")).uid == 61001
    assert viewer(Peer("", ("prometheus.example",), "ada")).is_operator
    with pytest.raises(NotAdmitted, match="say who you are"):
        viewer(Peer("", ("x",), "ada"), tenant_certificates=False)


def test_the_gate_is_known_by_its_certificate() -> None:
    admission = Admission(CollectorSettings(**SETTINGS))
    assert admission.is_gate(Peer("", ("n1.nodes.example",)))
    for name in ("nodes.example", "a.n1.nodes.example", "n1.nodes.example.evil"):
        assert not admission.is_gate(Peer("", (name,))), name


def test_of_several_common_names_none_counts() -> None:
    def subject(*names: str) -> dict[str, Any]:
        return {"subject": tuple((("commonName", name),) for name in names), "subjectAltName": (("DNS", "x"),)}

    assert peer_of("a", subject("ada")) == ("a", ("x",), "ada")
    assert peer_of("a", subject("ada", "ops")).common_name == "" and peer_of("a", None) == Peer("a")
