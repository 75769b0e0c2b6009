"""Whom a certificate names: by its DNS names alone, and one level below a wildcard."""

from __future__ import annotations

import pytest

from laggard.collector.tenants import PeerList, peer_of

ALLOWED = PeerList.parse(["certificate:*.nodes.example.org", "certificate:prom.example.org"], "trusted_proxies")


@pytest.mark.parametrize(
    ("kind", "name", "known"),
    [
        ("DNS", "n1.nodes.example.org", True),
        ("DNS", "N1.Nodes.Example.org", True),
        ("DNS", "prom.example.org", True),
        ("DNS", ".nodes.example.org", False),
        ("DNS", "a.b.nodes.example.org", False),
        ("email", "bob@hpc.nodes.example.org", False),
        ("email", "bob.nodes.example.org", False),
        ("URI", "prom.example.org", False),
        ("IP Address", "prom.example.org", False),
    ],
)
def test_who_is_known(kind: str, name: str, known: bool) -> None:
    assert ALLOWED.has(peer_of("192.0.2.1", {"subjectAltName": ((kind, name),)})) is known
