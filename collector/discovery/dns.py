"""The addresses of a name as agents: a headless service of Kubernetes, or any name with a record for each node."""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

from laggard.collector.discovery.source import Answer, Unanswered
from laggard.collector.scrape.targets import Target, parse_target

_NO_SUCH_NAME: Final = frozenset((socket.EAI_NONAME, socket.EAI_NODATA))
"""The errors with which the resolver says that a name has no address. All its others say that it does not know."""


class DnsName:
    """NAME, NAME:PORT or URL, as a target is written. Raises UsageError where it is none."""

    def __init__(self, text: str) -> None:
        parts = urlsplit(parse_target(text).url)
        self._scheme, self._name, self._port = parts.scheme, parts.hostname or "", parts.port or 0

    def read(self) -> Answer:
        """Each address of the name as a target, in order. A name with none is an answer, with a note. Where there are
        addresses of both families only IPv4's are taken, since the same agents have both. Raises Unanswered where the
        resolver cannot tell."""
        try:
            found = socket.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_NAME:
                return Answer((), f"{self._name} has no address")
            raise Unanswered(f"{self._name} cannot be resolved: {(error.strerror or str(error)).lower()}") from None
        except (OSError, UnicodeError) as error:
            raise Unanswered(f"{self._name} cannot be resolved: {error}") from None
        hosts = {str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET}
        hosts = hosts or {f"[{address[0]}]" for family, _, _, _, address in found if family == socket.AF_INET6}
        return Answer(tuple(Target(self._scheme, f"{host}:{self._port}") for host in sorted(hosts)))
