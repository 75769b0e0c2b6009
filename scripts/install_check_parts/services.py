"""In place of kube-proxy and CoreDNS: the addresses of services lead to their pods, and their names to the addresses.

Both follow the API server: its services, and the endpoints that the real controllers make of ready pods.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.control_plane import ControlPlane
from support.dns_server import NO_ERROR, NO_SUCH_NAME, A, labels

NAMES_ADDRESS = "10.96.0.10"
DOMAIN = "svc.cluster.local"
_EVERY_SECONDS = 0.5


class Services:
    """Runs until it is closed, in the network of whoever made it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._names: dict[str, list[str]] = {}
        self._rules: list[str] = []
        self._ended = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((NAMES_ADDRESS, 53))
        self._socket.settimeout(_EVERY_SECONDS)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._follow, self._answer_all)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _follow(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            try:
                services = self._plane.do("GET", "/api/v1/services")["items"]
                slices = self._plane.do("GET", "/apis/discovery.k8s.io/v1/endpointslices")["items"]
            except Exception:  # the control plane ends before
                continue
            self._names = dict(_names(services, slices))
            rules = [rule for service in services for rule in _rules(service, slices)]
            if rules != self._rules:
                text = "\n".join(
                    ["*nat", *rules, "-A POSTROUTING -m conntrack --ctstate DNAT -j MASQUERADE", "COMMIT\n"]
                )
                subprocess.run(["iptables-restore"], input=text, text=True, check=True)
                self._rules = rules

    def _answer_all(self) -> None:
        while not self._ended.is_set():
            try:
                query, client = self._socket.recvfrom(4096)
            except TimeoutError:
                continue
            self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        end = query.index(b"\0", 12) + 5
        name = b".".join(labels(query[12:end])).decode().lower()
        (kind,) = struct.unpack_from("!H", query, end - 4)
        known = self._names.get(name)
        found = known if known and kind == A else []
        header = query[:2] + struct.pack(
            "!HHHHH", 0x8580 | (NO_SUCH_NAME if known is None else NO_ERROR), 1, len(found), 0, 0
        )
        return (
            header
            + query[12:end]
            + b"".join(struct.pack("!HHHIH", 0xC00C, A, 1, 5, 4) + socket.inet_aton(address) for address in found)
        )


def _names(services: list[Any], slices: list[Any]) -> Iterator[tuple[str, list[str]]]:
    for service in services:
        name = _full(service)
        if service["spec"]["clusterIP"] == "None":
            yield name, [address for address, _ in _endpoints(service, slices)]
        else:
            yield name, [service["spec"]["clusterIP"]]


def _full(service: Any) -> str:
    return f"{service['metadata']['name']}.{service['metadata']['namespace']}.{DOMAIN}"


def _endpoints(service: Any, slices: list[Any]) -> Iterator[tuple[str, dict[str, int]]]:
    """Addresses that are ready, or all where the service wants that, each with its ports by name."""
    for part in slices:
        meta = part["metadata"]
        named = meta.get("labels", {}).get("kubernetes.io/service-name"), meta["namespace"]
        if named != (service["metadata"]["name"], service["metadata"]["namespace"]):
            continue
        ports = {port.get("name") or "": port["port"] for port in part.get("ports") or ()}
        for endpoint in part.get("endpoints") or ():
            if endpoint["conditions"].get("ready", True):
                yield from ((address, ports) for address in endpoint["addresses"])


def _rules(service: Any, slices: list[Any]) -> Iterator[str]:
    """To the first endpoint: there is one of each here."""
    address = service["spec"]["clusterIP"]
    if address == "None":
        return
    for endpoint, ports in list(_endpoints(service, slices))[:1]:
        for port in service["spec"]["ports"]:
            to = f"{endpoint}:{ports[port.get('name') or '']}"
            for chain in ("PREROUTING", "OUTPUT"):
                yield f"-A {chain} -d {address}/32 -p tcp --dport {port['port']} -j DNAT --to-destination {to}"
