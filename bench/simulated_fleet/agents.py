"""The agents: a few processes that listen on one port of all of 127.0.0.0/8; which agent is asked, the address says."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from simulated_fleet.answers import Answers
from simulated_fleet.plan import Plan

LATE_SECONDS: Final = 3.5
RESTART_SECONDS: Final = 5.0
RESTARTED_OF: Final = 200
"""Of so many agents one is being started anew at a time, each minute others."""

BACKLOG: Final = 4096


class Orders(NamedTuple):
    """What the agents are told meanwhile: `partition`, whether half of them cannot be reached; `later`, the share of
    them that are of the next release. And by process, their connections: open, most at once, and all."""

    partition: SynchronizedArray[float]
    later: SynchronizedArray[float]
    connections: SynchronizedArray[int]

    @staticmethod
    def made(processes: int) -> Orders:
        return Orders(
            multiprocessing.Array("d", 1), multiprocessing.Array("d", 1), multiprocessing.Array("l", 3 * processes)
        )

    def most_at_once(self) -> int:
        """The most connections at once since forget_most(), where each process had its most at the same time."""
        return sum(self.connections[1::3])

    def asked(self) -> int:
        return sum(self.connections[2::3])

    def forget_most(self) -> None:
        for place in range(1, len(self.connections), 3):
            self.connections[place] = self.connections[place - 1]


def address(node: int, port: int) -> str:
    return f"127.{1 + (node >> 16)}.{node >> 8 & 255}.{node & 255}:{port}"


def is_cut_off(node: int, nodes: int) -> bool:
    """Whether the node is in the half of the network that a partition takes away: that of the highest numbers."""
    return node >= nodes // 2


class Agent(asyncio.Protocol):
    """One connection to one of the agents."""

    answers: Answers
    orders: Orders
    place: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        octets = transport.get_extra_info("sockname")[0].split(".")
        self.node = (int(octets[1]) - 1 << 16) + int(octets[2]) * 256 + int(octets[3])
        counts = self.orders.connections
        counts[self.place] += 1
        counts[self.place + 1] = max(counts[self.place : self.place + 2])
        counts[self.place + 2] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.orders.connections[self.place] -= 1

    def data_received(self, data: bytes) -> None:
        plan, now = self.answers.plan, self.answers.now().fleet
        if self.orders.partition[0] and is_cut_off(self.node, plan.nodes):
            return
        if _is_restarting(self.node, now):
            self.transport.abort()
            return
        words = data.split(b" ", 2)
        if len(words) < 3:
            return
        self.keeps = b"\r\nConnection: keep-alive\r\n" in data
        target = urlsplit(words[1].decode("latin-1"))
        self._answer(plan.bad.get(self.node, ""), target.path, parse_qs(target.query))

    def _answer(self, bad: str, path: str, query: Mapping[str, list[str]]) -> None:
        if bad == "garbage":
            return self._send(b"\x00\xffnot what was asked for" * 100)
        if bad == "late":
            loop = asyncio.get_running_loop()
            loop.call_later(LATE_SECONDS, lambda: self._send(self._body(path, query)))
            return None
        if bad == "absurd" and path == "/api/v1/ranks":
            return self._send(self.answers.absurd(self.node))
        body = self._body(path, query)
        if bad == "half":
            self._send(body[: len(body) // 2], len(body))
            return self.transport.close()
        return self._send(body, len(body) // 3 if bad == "wrong_length" else None)

    def _body(self, path: str, query: Mapping[str, list[str]]) -> bytes:
        if path == "/api/v1/ranks":
            since = query.get("since")
            seconds = float(since[0]) if since else None
            return self.answers.ranks(self.node, seconds, self._is_of_the_next_release())
        if path == "/api/v1/collectives":
            return self.answers.collectives(self.node, [int(rank) for rank in query["rank"]])
        return self.answers.report(self.node)

    def _is_of_the_next_release(self) -> bool:
        return self.node % 100 < 100 * self.orders.later[0]

    def _send(self, body: bytes, length: int | None = None) -> None:
        if not self.transport.is_closing():
            said = len(body) if length is None else length
            how = b"keep-alive" if self.keeps else b"close"
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n" % (said, how) + body
            )


def _is_restarting(node: int, now: float) -> bool:
    return now % 60 < RESTART_SECONDS and (node + int(now // 60) * 7919) % RESTARTED_OF == 0


def _listen(port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(("0.0.0.0", port))
    found.listen(BACKLOG)
    found.setblocking(False)
    return found


def _serve(make: Callable[[], Answers], orders: Orders, number: int, port: int, ready: object) -> None:
    """Runs in a process of its own until it is ended."""

    async def run() -> None:
        Agent.answers, Agent.orders, Agent.place = make(), orders, 3 * number
        server = await asyncio.get_running_loop().create_server(Agent, sock=_listen(port), backlog=BACKLOG)
        ready.set()  # type: ignore[attr-defined]
        await server.serve_forever()

    asyncio.run(run())


@contextlib.contextmanager
def unreachable(port: int) -> Iterator[None]:
    """Meanwhile nobody answers at this port of 127.0.0.0/8, as where a host is off: the queue of whoever listens there
    is full, so that Linux answers no SYN."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("0.0.0.0", port))
        listening.listen(0)
        for _ in range(2):
            asks = stack.enter_context(socket.socket())
            asks.setblocking(False)
            asks.connect_ex(("127.0.0.1", port))
        yield


@contextlib.contextmanager
def agents(make: Callable[[], Answers], orders: Orders, processes: int, port: int) -> Iterator[None]:
    """All agents of the fleet at `port`, in so many processes; those that are away at the next one."""
    started = []
    with unreachable(port + 1):
        try:
            for number in range(processes):
                ready = multiprocessing.Event()
                words = (make, orders, number, port, ready)
                started.append(multiprocessing.Process(target=_serve, args=words, daemon=True))
                started[-1].start()
                if not ready.wait(60):
                    raise SystemExit("the fleet's agents did not start")
            yield
        finally:
            for process in started:
                process.terminate()
                process.join()


def targets(plan: Plan, port: int) -> list[str]:
    return [address(node, port + 1 if node in plan.away else port) for node in range(plan.nodes)]
