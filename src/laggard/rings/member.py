"""The supervisor of one node: it starts the workers, joins the ring, passes messages on, and ends what it has started.

It does not import torch, so that nothing of what torch waits for can hold it up: at the deadline it kills its workers
and says why, whatever they are in.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from laggard import __version__
from laggard.kit.environment import job_id, node_name
from laggard.kit.errors import EXIT_USAGE
from laggard.model import EXIT_CODES, Verdict
from laggard.rings import messages
from laggard.rings.authentication import MAX_NAME, coordinator_proof, is_proof, member_proof, new_nonce, session_key
from laggard.rings.link import LINE_BYTES, Forged, Link, beat
from laggard.rings.membership import Membership
from laggard.rings.options import RingOptions
from laggard.rings.worker_process import WorkerEnded, WorkerProcess
from laggard.wire import WireError

_RETRY_SECONDS: Final = 0.2
_CONNECT_SECONDS: Final = 5.0
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


@dataclasses.dataclass(frozen=True)
class MemberSettings:
    """The settings of this node for the ring, and how long it waits."""

    place: Membership
    options: RingOptions
    tokens: tuple[str, ...]
    """The secrets that others may show, of which this node shows the first; none: nobody needs one."""
    device: str
    local_ranks: int | None
    environ: Mapping[str, str]
    deadline: float
    """The time on the monotonic clock by which the ring is over, whatever happens."""

    @property
    def token(self) -> str:
        """The one that this node shows; empty: it has none."""
        return self.tokens[0] if self.tokens else ""


class RingBroken(Exception):
    """The ring cannot go on, and the text says why. `status`: the exit status."""

    def __init__(self, text: str, status: int = EXIT_CODES[Verdict.UNKNOWN]) -> None:
        super().__init__(text)
        self.status = status


class NotReached(RingBroken):
    """The leading node does not answer: it did not start, gave up, or cannot be reached."""


class Member:
    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self._lead = 0
        self._link: Link | None = None
        self._is_leaving = False
        self.ready = messages.Ready("", 0, "", "", "")
        self._workers: list[WorkerProcess] = []
        self._first_rank = 0

    async def start_workers(self) -> None:
        """Starts the workers, where they do not run yet. Raises RingBroken where one cannot take part."""
        if self._workers:
            return
        place = self.settings.place
        first = self._start(place.device_index or 0)
        self.ready = await self._ready(first)
        default = (2 if place.nodes == 1 else 1) if self.ready.device == "cpu" else self.ready.devices
        for local_rank in range(1, place.ranks or self.settings.local_ranks or default):
            self._start(local_rank)
        await asyncio.gather(*(self._ready(worker) for worker in self._workers[1:]))

    async def publish_address(self, host: str, port: int) -> None:
        """Tells the other nodes by torchrun's store where the coordinator listens."""
        assert self.settings.place.store is not None
        store_host, store_port = self.settings.place.store
        await self._ask_first(messages.Publish(store_host, store_port, f"{host} {port}"), messages.Done)

    async def take_part(
        self, host: str, port: int, join_seconds: float, lead: int = 0, own_secret: str | None = None
    ) -> messages.End:
        """Joins the ring at the address of the node that leads it, which must let this one in within `join_seconds`,
        and serves it to its end. `own_secret`: the leading node's own part's, in place of the token. Raises RingBroken;
        NotReached where nobody answers."""
        self._lead = lead
        token = self.settings.token if own_secret is None else own_secret
        link = self._link = await self._join(host, port, time.monotonic() + join_seconds, token)
        tasks: list[asyncio.Task[None]] = []
        try:
            tasks = [asyncio.ensure_future(beat(link))]
            tasks += [asyncio.ensure_future(self._relay(link, number)) for number in range(len(self._workers))]
            return await self._obey(link)
        except Forged as error:
            link.send(messages.Leave("somebody is between it and the coordinator, and altered what that said"))
            raise RingBroken(f"the coordinator, node {lead} at {host}:{port}, {error}") from None
        except (ConnectionError, WireError) as error:
            raise RingBroken(f"the coordinator, node {lead} at {host}:{port}, {error}") from None
        finally:
            for task in tasks:
                task.cancel()
            await link.close()

    async def find_coordinator(self) -> tuple[str, int]:
        """Returns the coordinator's address: the user's, the launcher's, or the one in torchrun's store."""
        place = self.settings.place
        if place.store is None:
            return place.host, place.port
        learned = await self._ask_first(messages.Learn(*place.store, max(1.0, self._seconds_left())), messages.Learned)
        host, _, port = learned.text.rpartition(" ")
        if not host or not port.isdecimal():
            raise RingBroken("torchrun's store holds no address of this ring's coordinator")
        return host, int(port)

    def leave(self, text: str) -> None:
        """Ends the ranks at once, and tells the coordinator that the node goes, and why."""
        self._is_leaving = True
        if self._link is not None:
            self._link.send(messages.Leave(text))
        self.stop()

    def stop(self) -> None:
        for worker in self._workers:  # all at once: a GPU's process may take long to end
            worker.signal_kill()
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def _start(self, local_rank: int) -> WorkerProcess:
        worker = WorkerProcess.start(self.settings.device, local_rank, self.settings.environ)
        self._workers.append(worker)
        return worker

    async def _ready(self, worker: WorkerProcess) -> messages.Ready:
        try:
            report = await worker.report()
        except WorkerEnded as error:
            raise RingBroken(f"a rank of this node did not start: {error}") from None
        if not isinstance(report, messages.Ready) or report.reason:
            raise RingBroken(
                report.reason if isinstance(report, messages.Ready) else "a worker did not say what it has"
            )
        return report

    async def _ask_first(self, command: messages.Publish | messages.Learn, kind: type[Any]) -> Any:
        self._workers[0].command(command)
        try:
            report = await self._workers[0].report()
        except WorkerEnded as error:
            raise RingBroken(f"the first rank of this node: {error}") from None
        if not isinstance(report, kind):
            text = report.text if isinstance(report, messages.Failed) else "no answer"
            raise RingBroken(f"torchrun's store did not tell where the ring meets: {text}")
        return report

    async def _join(self, host: str, port: int, until: float, token: str) -> Link:
        """Tries until the coordinator lets this node in: nodes start in any order, and one that loads torch from a
        slow file system comes minutes later."""
        reason, began = "nobody answers", time.monotonic()
        while True:
            link: Link | None = None
            try:
                opening = asyncio.open_connection(host, port, limit=LINE_BYTES)
                link = Link(*await asyncio.wait_for(opening, max(0.1, min(_CONNECT_SECONDS, until - time.monotonic()))))
                await self._introduce(link, until, token)
                return link
            except asyncio.TimeoutError:
                reason = "no answer"
            except WireError:
                reason = "what answers is no coordinator of a ring"
            except OSError as error:
                reason = error.strerror or str(error)
            except BaseException:
                if link is not None:
                    await link.close()
                raise
            if link is not None:
                await link.close()
            if time.monotonic() >= until:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        raise NotReached(
            f"node {self._lead} was not reached at {host}:{port} within {time.monotonic() - began:.0f} s ({reason}): "
            "it did not start, gave up, or a firewall is between"
        )

    async def _introduce(self, link: Link, until: float, token: str) -> None:
        """Says who this node is, and waits until it is let in. Raises RingBroken where it is refused; ConnectionError
        and WireError."""
        challenge = messages.read_from_coordinator(await link.read())
        if not isinstance(challenge, messages.Challenge):
            raise ConnectionError("what answers is no coordinator of a ring")
        if challenge.token and not token:
            raise RingBroken("the ring needs a token: give --token-file", EXIT_USAGE)
        hello = self._hello(challenge, token)
        link.send(hello)
        while isinstance(answer := messages.read_from_coordinator(await link.read()), messages.Beat):
            if time.monotonic() > until:
                raise ConnectionError(f"node {self._lead} is there, and its ranks are not ready")
        if isinstance(answer, messages.Refused):
            raise RingBroken(answer.text, EXIT_USAGE)
        expected = coordinator_proof(token, challenge.nonce, hello.nonce)
        if not isinstance(answer, messages.Accepted) or not is_proof(answer.proof, expected):
            raise RingBroken(f"node {self._lead} does not know this ring's token", EXIT_USAGE)
        link.sign_as("member", session_key(token, challenge.nonce, hello.nonce))

    def _hello(self, challenge: messages.Challenge, token: str) -> messages.Hello:
        settings = self.settings
        hello = messages.Hello(
            index=settings.place.number,
            launched=not settings.place.chosen,
            nodes=settings.place.nodes,
            node=(settings.place.own_name or node_name(settings.environ))[:MAX_NAME],
            boot_id=_boot_id(),
            ranks=len(self._workers),
            device=self.ready.device,
            model=self.ready.model[:80],
            laggard=__version__,
            torch=self.ready.torch,
            nccl=self.ready.nccl,
            job=job_id(settings.environ)[:80] if not settings.place.chosen else "",
            options=settings.options,
            nonce=new_nonce(),
            proof="",
        )
        return structs.replace(hello, proof=member_proof(token, challenge.nonce, hello))

    async def _obey(self, link: Link) -> messages.End:
        while True:
            message = messages.read_from_coordinator(await link.read())
            if isinstance(message, messages.End):
                return message
            if isinstance(message, messages.Refused):
                raise RingBroken(message.text, EXIT_USAGE)
            if isinstance(message, messages.Begin):
                self._first_rank = message.first_rank
            elif isinstance(message, messages.ToRank):
                self._pass_on(message, link)

    def _pass_on(self, message: messages.ToRank, link: Link) -> None:
        command = message.command
        if isinstance(command, messages.Join):
            address = "" if self.settings.environ.get("GLOO_SOCKET_IFNAME") else command.address or link.own_address
            command = structs.replace(command, address=address)
        local = message.rank - self._first_rank
        if 0 <= local < len(self._workers):
            self._workers[local].command(command)

    async def _relay(self, link: Link, local: int) -> None:
        worker = self._workers[local]
        while True:
            try:
                report = await worker.report()
                link.send(messages.FromRank(self._first_rank + local, report))
            except WorkerEnded as error:
                if not self._is_leaving:
                    link.send(messages.RankDied(self._first_rank + local, str(error)))
                return

    def _seconds_left(self) -> float:
        return self.settings.deadline - time.monotonic()


def _boot_id() -> str:
    with contextlib.suppress(OSError), open(_BOOT_ID) as file:
        return file.read(64).strip()
    return ""
