"""The coordinator of a ring, in the supervisor of the node that leads it, node 0: it lets nodes in, commands
their ranks, and hears what happens to them.

Whoever connects may send anything: lines are bounded, a stranger has seconds to prove that it knows the token, and
makes room for the next one where there are many; a node that is refused learns why in one line, while the ring goes on
waiting for the right one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from laggard.kit.errors import UsageError
from laggard.kit.http_message import listen
from laggard.kit.words import printable_line
from laggard.rings import messages
from laggard.rings.authentication import Strangers, coordinator_proof, new_nonce, refusal, session_key, shown_token
from laggard.rings.link import LINE_BYTES, Addresses, Forged, Link, beat
from laggard.rings.membership import Membership, NodeShare
from laggard.wire import WireError

ONE_MACHINE: Final = "127.0.0.1"
_HELLO_SECONDS: Final = 5.0
_MAX_CONNECTIONS: Final = 4096
_MAX_STRANGERS: Final = 256
"""The most connections of which nobody has proved yet that it knows the token: of the address that has the most of
them the oldest makes room."""
_MAX_REPORTS: Final = 1 << 16
"""The most reports that wait to be read: the ranks of a ring have a few under way each."""
_ACCEPTED_AT_ONCE: Final = 8
"""The connections that asyncio accepts before it reads from any: fewer than strangers, so that a crowd which waits is
not let in over those that were let in a moment before."""
_BACKLOG: Final = 1024
_MAX_REFUSALS: Final = 4
_FOR_EVER: Final = 1e9
MIN_SILENCE_SECONDS: Final = 10.0
"""The time for which nothing must have moved before a node that alone does not answer is accused: a busy machine takes
seconds, and a ring's time may be over at any moment."""
_CAUSE_SECONDS: Final = 1.5
"""The time after the first failure within which others may come, of which one is the cause: a death is told by the
kernel at once, but on two ways."""


class JoinedNode(NamedTuple):
    hello: messages.Hello
    link: Link


class NodeLost(NamedTuple):
    """`left`: it said that it goes, and why; or what came in its name is not its own."""

    node: int
    text: str
    left: bool = False


class Failure(NamedTuple):
    """A rank or node that failed. `certain`: it ended or is gone; False: it only reports an error, perhaps
    another's. `silent`: it did not answer in time. `left`: it went, and nothing is wrong with it."""

    node: int
    text: str
    certain: bool
    silent: bool = False
    left: bool = False


class RingFailed(Exception):
    """Ranks failed, and the ring with them. `failures`: the likely causes."""

    def __init__(self, failures: tuple[Failure, ...]) -> None:
        super().__init__("; ".join(failure.text for failure in failures))
        self.failures = failures


class NotAllCame(Exception):
    """The ring failed because nodes did not come in time. The text names them, and who was refused."""


class Coordinator:
    """The first node to come must be like this one, the leading node itself: node 0, or a gang's node 1 where node 0
    does not come. Its first rank is rank 0."""

    def __init__(self, place: Membership, tokens: tuple[str, ...], own_secret: str = "") -> None:
        """`tokens`: those that a node may show; none: it needs none. `own_secret`: what the leading node's own part
        knows in place of a token, so that no other process takes its place; empty: it has none."""
        self._place, self._tokens = place, tokens
        self._own_secrets = (own_secret,) if own_secret else tokens
        self.lead = place.number
        self.nodes: dict[int, JoinedNode] = {}
        self.first_ranks: dict[int, int] = {}
        self.lost: dict[int, str] = {}
        self.absent: tuple[str, ...] = ()
        self._began = False
        self._moved_at = 0.0  # when a rank was last told or heard, on the monotonic clock
        self._refused: list[str] = []
        self._events: asyncio.Queue[messages.FromRank | messages.RankDied | NodeLost | None] = asyncio.Queue()
        self._own_came = asyncio.Event()
        self._server: asyncio.AbstractServer | None = None
        self._connections: dict[asyncio.Task[None], Link] = {}
        self._strangers: dict[asyncio.Task[None], Link] = {}
        self._addresses = Addresses()
        self.strangers = Strangers()

    async def listen(self) -> int:
        """Returns the port. Raises UsageError where the address is taken, or not this machine's."""
        host, port = self._place.host, self._place.port
        try:
            listener = listen(_interface(self._place), port, _BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"port {port} is in use on this machine, perhaps by another ring: choose another one for all nodes"
                ) from None
            raise UsageError(
                f"node {self.lead} cannot listen on {host}:{port} ({error.strerror or error}): "
                f"name an address of this machine, on which node {self.lead} runs"
            ) from None
        self._server = await asyncio.start_server(
            self._accept, sock=listener, limit=LINE_BYTES, backlog=_ACCEPTED_AT_ONCE
        )
        listener.listen(_BACKLOG)
        return int(listener.getsockname()[1])

    async def gather(self, until: float, fewest: int | None = None) -> None:
        """Waits for all nodes, and gives them their ranks. `fewest`: how many, this one among them, are enough at
        `until`, on the monotonic clock; None: all. Raises NotAllCame then."""
        while len(self.nodes) < self._place.nodes:
            left = until - time.monotonic()
            try:
                await asyncio.wait_for(self._events.get(), max(0.0, left))
            except asyncio.TimeoutError:
                if self.lead not in self.nodes or len(self.nodes) < (fewest or self._place.nodes):
                    raise NotAllCame(self._who_is_missing()) from None
                self.absent = self._absent_nodes()
                break
        self._began = True
        first = 0
        for index in sorted(self.nodes):
            self.first_ranks[index] = first
            self.nodes[index].link.send(messages.Begin(first))
            first += self.nodes[index].hello.ranks

    @property
    def world(self) -> int:
        return sum(node.hello.ranks for node in self.nodes.values())

    def ranks_of(self, index: int) -> range:
        return range(self.first_ranks[index], self.first_ranks[index] + self.nodes[index].hello.ranks)

    def index_of(self, rank: int) -> int:
        return next(index for index in self.first_ranks if rank in self.ranks_of(index))

    def own_address(self) -> str:
        """The address by which other machines reach this one, where its own name may lead to itself; empty: any."""
        for index, node in self.nodes.items():
            if index != self.lead and not ipaddress.ip_address(node.link.own_address.partition("%")[0]).is_loopback:
                return node.link.own_address
        return ""

    def send(self, rank: int, command: messages.Command) -> None:
        self._moved_at = time.monotonic()
        self.nodes[self.index_of(rank)].link.send(messages.ToRank(rank, command))

    async def next_report(self, until: float) -> messages.FromRank | Failure:
        """Returns the next report of any rank, or the next failure. Raises TimeoutError at `until`."""
        while True:
            try:
                event = await asyncio.wait_for(self._events.get(), max(0.0, until - time.monotonic()))
            except asyncio.TimeoutError:
                raise TimeoutError from None
            if isinstance(event, messages.FromRank):
                self._moved_at = time.monotonic()
                if isinstance(event.report, messages.Failed):
                    index = self.index_of(event.rank)
                    return Failure(index, f"{self.name(index)}: rank {event.rank}: {event.report.text}", False)
                return event
            if isinstance(event, messages.RankDied):
                index = self.index_of(event.rank)
                return Failure(index, f"{self.name(index)}: rank {event.rank}: {event.text}", True)
            if isinstance(event, NodeLost) and event.node not in self.lost:
                self.lost[event.node] = event.text
                return Failure(event.node, f"{self.name(event.node)} {event.text}", True, left=event.left)

    async def ask(
        self, commands: Mapping[int, messages.Command], kind: type[messages.Report], seconds: float
    ) -> dict[int, Any]:
        """Sends each rank its command, and returns each rank's answer, which is of `kind`. Raises RingFailed where one
        does not answer, with the cause as far as it shows."""
        answers: dict[int, messages.Report] = {}
        until = time.monotonic() + seconds
        for rank, command in commands.items():
            self.send(rank, command)
        while len(answers) < len(commands):
            report = await self.report_or_fail(until, [rank for rank in commands if rank not in answers])
            if isinstance(report.report, kind):
                answers.setdefault(report.rank, report.report)
        return answers

    async def report_or_fail(self, until: float, awaited: list[int]) -> messages.FromRank:
        """Returns the next report. Raises RingFailed; `awaited` names the ranks that are to blame at `until`."""
        try:
            report = await self.next_report(until)
        except TimeoutError:
            raise RingFailed(self._silent(awaited)) from None
        if isinstance(report, Failure):
            raise RingFailed(await self._causes(report))
        return report

    def _silent(self, awaited: list[int]) -> tuple[Failure, ...]:
        """The nodes that have not answered. What was asked a moment before the ring's time was over says nothing."""
        seconds = time.monotonic() - self._moved_at
        is_long = seconds >= MIN_SILENCE_SECONDS
        text = (
            "did not answer in time" if is_long else f"had not answered when the time was over, {seconds:.1f} s later"
        )
        nodes = sorted({self.index_of(rank) for rank in awaited})
        return tuple(Failure(index, f"{self.name(index)} {text}", False, is_long) for index in nodes)

    async def _causes(self, first: Failure) -> tuple[Failure, ...]:
        """Waits a little for what may have caused the first failure: neighbours of a dead rank often speak first."""
        failures = [first]
        until = time.monotonic() + _CAUSE_SECONDS
        while True:
            try:
                report = await self.next_report(until)
            except TimeoutError:
                break
            if isinstance(report, Failure):
                failures.append(report)
        certain = tuple(failure for failure in failures if failure.certain)
        return certain[:1] or tuple(failures[:1])

    def name(self, index: int) -> str:
        """`node 2 (gpu-07)`."""
        own = self.node_name(index)
        return f"node {index}" + (f" ({own})" if own else "")

    def node_name(self, index: int) -> str:
        """The node's own name, or where it never came the launcher's for it; empty: nobody told one."""
        if index in self.nodes:
            return printable_line(self.nodes[index].hello.node, 80)
        return self._place.names[index] if self._place.names else ""

    async def end(self, status: int, text: str, shares: Mapping[int, NodeShare] | None = None) -> None:
        """Tells all nodes that the ring is over, each with its share of what was found, and closes."""
        for index, node in self.nodes.items():
            node.link.send(messages.End(status, text, (shares or {}).get(index)))
        await asyncio.gather(*(node.link.close() for node in self.nodes.values()), return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        self._make_room()
        if len(self._connections) >= _MAX_CONNECTIONS:
            link.abort()
            return
        task = asyncio.ensure_future(self._serve(link))
        self._connections[task] = self._strangers[task] = link
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """The task has ended, perhaps before it began."""
        self._strangers.pop(task, None)
        self._connections.pop(task).abort()

    async def _serve(self, link: Link) -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(ConnectionError, WireError):  # a port scanner, or somebody who left
            index = await self._admit(link, task)
            if index is None:
                await link.close()
            else:
                await self._listen_to(index, link)

    def _make_room(self) -> None:
        """One of too many strangers goes: whoever knows the token proves it within milliseconds."""
        while len(self._strangers) >= _MAX_STRANGERS:
            count = Counter(link.peer_address for link in self._strangers.values())
            crowd, _ = count.most_common(1)[0]
            task = next(task for task, link in self._strangers.items() if link.peer_address == crowd)
            self._strangers.pop(task).abort()
            task.cancel()

    async def _admit(self, link: Link, task: asyncio.Task[Any]) -> int | None:
        """Returns the index of the node that has connected; None: it was refused."""
        challenge = messages.Challenge(new_nonce(), bool(self._tokens))
        link.send(challenge)
        hello = messages.read_from_member(await link.read(_HELLO_SECONDS))
        if not isinstance(hello, messages.Hello):
            return None
        tokens = self._own_secrets if hello.index == self.lead else self._tokens
        token = shown_token(tokens, challenge.nonce, hello)
        if text := self._refusal(hello, {}, token, challenge.nonce):
            self._refuse(link, text)
            return None
        self._strangers.pop(task, None)
        if hello.index != self.lead:
            await self._wait_for_own_node(link)
        present = {index: node.hello for index, node in self.nodes.items()}
        text = self._refusal(hello, present, token, challenge.nonce)
        if text or self._began:
            self._refuse(link, text or "it comes too late: the others have begun without it")
            return None
        link.send(messages.Accepted(coordinator_proof(token, challenge.nonce, hello.nonce)))
        link.sign_as("coordinator", session_key(token, challenge.nonce, hello.nonce))
        self.nodes[hello.index] = JoinedNode(hello, link)
        if hello.index == self.lead:
            self._own_came.set()
        self._events.put_nowait(None)
        return hello.index

    def _refusal(self, hello: messages.Hello, present: Mapping[int, messages.Hello], token: str, challenge: str) -> str:
        return refusal(hello, present, self._place.nodes, token, challenge, self._place.names)

    def _refuse(self, link: Link, text: str) -> None:
        self._refused.append(f"{link.peer_address} was refused: {text}")
        del self._refused[:-_MAX_REFUSALS]
        link.send(messages.Refused(text))

    async def _wait_for_own_node(self, link: Link) -> None:
        """The leading node decides what the others must agree with, also where it takes minutes to load torch and they
        come before it."""
        came, says = asyncio.ensure_future(self._own_came.wait()), asyncio.ensure_future(link.read(_FOR_EVER))
        beating = asyncio.ensure_future(beat(link))
        try:
            await asyncio.wait((came, says), return_when=asyncio.FIRST_COMPLETED)
            if says.done():
                says.result()
                raise ConnectionError("says something before it was let in")
        finally:
            for task in (came, says, beating):
                task.cancel()
            await asyncio.gather(came, says, beating, return_exceptions=True)

    async def _listen_to(self, index: int, link: Link) -> None:
        beating = asyncio.ensure_future(beat(link))
        try:
            while True:
                message = messages.read_from_member(await link.read())
                if isinstance(message, (messages.FromRank, messages.RankDied)) and self._is_own(index, message.rank):
                    self._take(message)
                elif isinstance(message, messages.Leave):
                    self._lose(index, link, f"left: {printable_line(message.text, 200)}", True)
                    return
                elif not isinstance(message, messages.Beat):
                    raise ConnectionError("sent what it may not")
        except Forged as error:
            self._lose(index, link, str(error), True)
        except (ConnectionError, WireError) as error:
            text = "sent what is no message" if isinstance(error, (WireError, msgspec.DecodeError)) else str(error)
            self._lose(index, link, text)
        finally:
            beating.cancel()

    def _lose(self, index: int, link: Link, text: str, left: bool = False) -> None:
        """Before the ring begins the node may come again."""
        if self._began:
            self._events.put_nowait(NodeLost(index, text, left))
        elif self.nodes[index].link is link:
            del self.nodes[index]
            self._events.put_nowait(None)

    def _take(self, message: messages.FromRank | messages.RankDied) -> None:
        """Raises ConnectionError where the ranks report more than anybody asked for."""
        report = message.report if isinstance(message, messages.FromRank) else None
        if isinstance(report, messages.Put):
            told = self._addresses.put(report)
            for rank in told[1] if told else ():
                self.send(rank, told[0])  # type: ignore[index]
        elif isinstance(report, messages.Connected):
            self.strangers.note(message.rank, report)
        elif isinstance(report, messages.Want):
            value = self._addresses.want(message.rank, report)
            if value is not None:
                self.send(message.rank, value)
        elif self._events.qsize() < _MAX_REPORTS:
            self._events.put_nowait(message)
        else:
            raise ConnectionError("sent more than it was asked for")

    def _is_own(self, index: int, rank: int) -> bool:
        """Whether the rank is of this node, which speaks for no other; before the ring begins it has none."""
        return index in self.first_ranks and rank in self.ranks_of(index)

    def _absent_nodes(self) -> tuple[str, ...]:
        """The names of who did not come, and who was refused, which tells whom it may have been."""
        missing = [self.name(index) for index in range(self._place.nodes) if index not in self.nodes]
        return (*missing, *dict.fromkeys(self._refused))

    def _who_is_missing(self) -> str:
        missing = [index for index in range(self._place.nodes) if index not in self.nodes]
        shown = [str(index) + (f" ({self.node_name(index)})" if self.node_name(index) else "") for index in missing]
        names = ", ".join(shown[:16]) + (f" and {len(missing) - 16} more" if len(missing) > 16 else "")
        refused = "; ".join(dict.fromkeys(self._refused))
        return (
            f"{len(self.nodes)} of {self._place.nodes} nodes came: node{'s' * (len(missing) > 1)} {names} did not"
            + (f" ({refused})" if refused else "")
        )


def _interface(place: Membership) -> str:
    """The interface to listen on: an address that was given, or that no other machine reaches, else all (empty), since
    the machine's own name often leads to 127.0.1.1."""
    if place.is_one_machine:
        return ONE_MACHINE
    try:
        return str(ipaddress.ip_address(place.host)) if place.chosen else ""
    except ValueError:
        return ""
