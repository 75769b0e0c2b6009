"""One ring from the first node to the document: what the coordinator has the ranks do, in which order."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from statistics import median_low
from typing import Any, Final

from laggard.kit.progress import Bar
from laggard.model import Finding, Severity, Verdict
from laggard.rings import judge
from laggard.rings.authentication import strangers_text
from laggard.rings.coordinator import Coordinator, RingFailed
from laggard.rings.document import Accused, Pairs, Ring, RingNode, RingResult, Suspect
from laggard.rings.judge import ring_result
from laggard.rings.messages import Compute, Computed, Done, Join, Measured, Observe, Observed, Sweep
from laggard.rings.options import RingOptions, size_text
from laggard.rings.pairs.findings import judge_measured
from laggard.rings.pairs.judge import MIN_PEERS, Judgement, judge_suspect, judgement_of
from laggard.rings.pairs.rounds import Computing, PairRounds, PairsMeasured, pairs_without_places, suspect_of
from laggard.rings.transport import judge_transport_used

_JOIN_SECONDS: Final = 60.0
_COMPUTE_SECONDS: Final = {"cpu": 0.1, "cuda": 0.5}
"""The seconds of the warm-up, and of the measurement after it."""
_GROWTH_RATIO: Final = {"cpu": 2.0, "cuda": 1.0}
"""The factor by which each further measurement is longer: what disturbs a CPU lasts for longer than a tenth of a
second."""
_COMPUTE_PATIENCE: Final = 60.0
_MAX_COMPUTES: Final = 6
"""The number of times that a device which looks slow is measured before it is called slow."""
_PAIR_BYTES: Final = {"cpu": 1 << 20, "cuda": 64 << 20}
"""Large enough that the rate counts and the latency does not, and small enough for a link at a tenth of its rate."""


class Session:
    """A ring whose nodes have all come. Each method adds to what the document will hold."""

    def __init__(self, coordinator: Coordinator, options: RingOptions, progress: Bar, until: float) -> None:
        self.coordinator, self.options, self.progress, self.until = coordinator, options, progress, until
        self.began = time.monotonic()
        self.computed: dict[int, Computed] = {}
        self.slow_ranks: set[int] = set()
        self.results: list[RingResult] = []
        self.findings: list[Finding] = []
        self.accused: dict[int, list[int]] = {}
        self.unknown: list[str] = []
        self.left: list[str] = []
        self.pairs: Pairs | None = None
        self.suspect: Suspect | None = None
        self._compute_unknown = ""
        self.transport_used: dict[str, Any] = {}

    @property
    def device(self) -> str:
        return self.coordinator.nodes[self.coordinator.lead].hello.device

    async def run(self) -> Ring:
        """Does all steps. A failure of a rank ends them, and is in the document."""
        try:
            await self._connect()
            await self._compute()
            await self.measure()
            await self._observe()
        except RingFailed as error:
            self.fail(error)
        return self.document()

    async def measure(self) -> None:
        if self.options.suspect:
            await self._suspect()
        else:
            await (self._pairs() if self.options.pairs else self._sweep())

    def fail(self, error: RingFailed) -> None:
        """Names who failed. A node is accused that is gone, or that alone did not answer: what a rank reports may be
        another's fault."""
        for failure in error.failures:
            if failure.left:
                self.left.append(failure.text)
                continue
            name = self.coordinator.name(failure.node)
            strangers = self.coordinator.strangers.found(range(self.coordinator.world), (failure.text,))
            if strangers and not failure.certain:
                self.unknown.append(strangers_text(strangers, name))
                continue
            text = failure.text.removeprefix(name).lstrip(": ")
            evidence = {"said": failure.text, "ended": failure.certain}
            found = judge.ring_failed(name, f"ended the ring: {text}", evidence)
            accuses = failure.certain or (failure.silent and len(error.failures) == 1)
            self._accuse(found, (failure.node,) if accuses else ())
        self.unknown.append("the ring ended before all was measured")

    def _accuse(self, found: Finding, nodes: Collection[int]) -> None:
        """Notes a finding, and the nodes that it accuses: each with all its machine's processes."""
        machines = {index: own for own in self._indices_by_machine() for index in own}
        for index in sorted({other for node in nodes for other in machines.get(node, (node,))}):
            self.accused.setdefault(index, []).append(len(self.findings))
        self.findings.append(found)

    def document(self) -> Ring:
        return Ring(
            verdict=self._verdict(),
            world_size=self.coordinator.world,
            transport=self._transport(),
            nodes=tuple(self._node(index) for index in sorted(self.coordinator.nodes)),
            results=tuple(self.results),
            findings=tuple(self.findings),
            unknown="; ".join(filter(None, self.unknown)),
            pairs=self.pairs,
            elapsed_seconds=time.monotonic() - self.began,
            accused=tuple(Accused(node, tuple(places)) for node, places in sorted(self.accused.items())),
            absent=self.coordinator.absent,
            left=tuple(self.left),
            suspect=self.suspect,
        )

    async def _connect(self) -> None:
        """Tells all ranks their places, and the address by which the others reach them."""
        self.progress.show(0.0, "connecting")
        ranks, address = range(self.coordinator.world), self.coordinator.own_address()
        own = set(self.coordinator.ranks_of(self.coordinator.lead))
        joins = {rank: Join(rank, len(ranks), address if rank in own else "") for rank in ranks}
        await self.coordinator.ask(joins, Done, min(_JOIN_SECONDS, self._seconds_left()))

    async def _compute(self) -> None:
        """Measures each rank's device, and again those that look slow, or all where their speeds are too uneven to tell
        one that is slow: noise only makes slower, and the best counts.
        CPUs that are one machine's take turns, each rank's GPU is its own."""
        ranks = set(range(self.coordinator.world))
        for attempt in range(_MAX_COMPUTES):
            for turn in self._turns(ranks):
                self.progress.show(0.0, f"computing, {len(self.computed)} of {self.coordinator.world}")
                await self._compute_once(turn, _COMPUTE_SECONDS[self.device] * _GROWTH_RATIO[self.device] ** attempt)
            names = {rank: self._device_name(rank) for rank in self.computed}
            findings, self.slow_ranks, unknown = judge.judge_compute(self.computed, names)
            is_blunt = judge.is_blunt(self.computed)
            ranks = set(self.computed) if is_blunt else self.slow_ranks
            if not ranks:
                break
        of_device = {name: self.coordinator.index_of(rank) for rank, name in names.items()}
        for found in findings:
            self._accuse(found, (of_device[found.device],))
        if self.options.pairs:  # the sweep's answer is about what ranks exchange
            self.unknown.append(unknown)
            self._compute_unknown = unknown

    async def _compute_once(self, ranks: list[int], seconds: float) -> None:
        command = Compute(seconds)
        patience = min(_COMPUTE_PATIENCE, self._seconds_left())
        for rank, new in (await self.coordinator.ask(dict.fromkeys(ranks, command), Computed, patience)).items():
            old = self.computed.get(rank, new)
            best = max(old.per_second, new.per_second)
            wrong, checked = max((old.wrong, old.checked), (new.wrong, new.checked))
            self.computed[rank] = Computed(best, checked, wrong, new.error or old.error)

    def _turns(self, ranks: Collection[int]) -> list[list[int]]:
        machines: dict[str, list[int]] = {}
        for index, node in self.coordinator.nodes.items():
            own = [rank for rank in self.coordinator.ranks_of(index) if rank in ranks]
            machines.setdefault(node.hello.boot_id or f"node {index}", []).extend(own)
        if self.device == "cuda":
            return [[rank for own in machines.values() for rank in own]]
        longest = max(map(len, machines.values()))
        return [[own[turn] for own in machines.values() if turn < len(own)] for turn in range(longest)]

    async def _sweep(self) -> None:
        world = self.coordinator.world
        if world == 1:
            self.unknown.append("one rank alone exchanges nothing: give more with --local-ranks, or more nodes")
            return
        patience = max(1.0, self._seconds_left())
        for rank in range(world):
            self.coordinator.send(rank, Sweep(self.options, patience))
        reports: dict[int, list[Measured]] = {rank: [] for rank in range(world)}
        try:
            await self._take_in(reports)
        finally:
            self.results = _complete_results(reports)
            self.findings += judge.wrong_results(self.results, reports)
        planned = len(self.options.ops) * len(self.options.sizes)
        if len(self.results) < planned:
            self.unknown.append(f"{planned - len(self.results)} of {planned} sizes were not measured: too small for so "
                                "many ranks, or --seconds were over")  # fmt: skip

    async def _take_in(self, reports: dict[int, list[Measured]]) -> None:
        done: set[int] = set()
        planned = len(self.options.ops) * len(self.options.sizes)
        while len(done) < len(reports):
            report = await self.coordinator.report_or_fail(self.until, [rank for rank in reports if rank not in done])
            if isinstance(report.report, Done):
                done.add(report.rank)
            elif isinstance(report.report, Measured) and len(reports[report.rank]) < planned:
                reports[report.rank].append(report.report)
                if report.rank == 0:
                    size = size_text(report.report.size_bytes)
                    self.progress.show(len(reports[0]) / planned, f"{report.report.op} {size}")

    async def _pairs(self) -> None:
        """Measures pairs of nodes, each with all of its ranks."""
        machines = self.machines()
        size_bytes = self.options.pair_bytes or _PAIR_BYTES[self.device]
        rounds = PairRounds(self.coordinator, machines, size_bytes, self.progress)
        measured = await rounds.play(min(self.until, time.monotonic() + self.options.seconds))
        self._take_in_pairs(measured, machines, size_bytes)

    async def _suspect(self) -> None:
        """Measures the suspect in its peers' places, each machine with all of its ranks."""
        machines, name = self.machines(), self.options.suspect
        suspect = next((it for it in machines if self.coordinator.nodes[it].hello.node == name), None)
        if suspect is None or len(machines) <= MIN_PEERS:
            others = f"the suspect needs {MIN_PEERS} peers, and the ring has {len(machines)} nodes"
            self.unknown.append(f"no node of the ring is called {name}" if suspect is None else others)
            return
        size_bytes = self.options.pair_bytes or _PAIR_BYTES[self.device]
        rounds = PairRounds(self.coordinator, machines, size_bytes, self.progress)
        measured = await rounds.play_suspect(suspect, min(self.until, time.monotonic() + self.options.seconds))
        judged = judge_suspect(suspect, measured.times)
        ranks = 2 * len(machines[self.coordinator.lead])
        computing = self._computing(machines, suspect)
        self.suspect = suspect_of(suspect, name, measured, judged, computing, size_bytes, ranks)
        if self.suspect.outcome == "unknown":
            self.unknown.append(f"{name}: {self.suspect.why}")
        judgement = judgement_of(suspect, sorted(machines), judged)
        self._take_in_pairs(pairs_without_places(measured), machines, size_bytes, judgement)

    def _computing(self, machines: Mapping[int, tuple[int, ...]], suspect: int) -> Computing:
        own = [self.computed[rank] for rank in machines[suspect] if rank in self.computed]
        others = [it.per_second for rank, it in self.computed.items() if rank not in machines[suspect]]
        usual = median_low(others) if others else 0.0
        ratio = min(it.per_second for it in own) / usual if own and usual else None
        slow = not self.slow_ranks.isdisjoint(machines[suspect])
        return Computing(ratio, slow, sum(it.wrong for it in own), self._compute_unknown)

    def _take_in_pairs(
        self,
        measured: PairsMeasured,
        machines: Mapping[int, tuple[int, ...]],
        size_bytes: int,
        judgement: Judgement | None = None,
    ) -> None:
        judged = judge_measured(
            measured,
            len(machines),
            size_bytes,
            2 * len(machines[self.coordinator.lead]),
            {number for number, ranks in machines.items() if self.slow_ranks.intersection(ranks)},
            self.device == "cpu",
            self.coordinator.name,
            judgement,
        )
        self.pairs = judged.pairs
        for found, nodes in zip(judged.findings, judged.accused, strict=True):
            self._accuse(found, nodes)
        self.unknown += judged.unknown
        self.left += [failure.text for failure in measured.lost if failure.left]

    async def _observe(self) -> None:
        """Asks which transports NCCL used. gloo has one, TCP, and logs nothing."""
        if self.device != "cuda" or self.coordinator.world == 1:
            return
        alive = [
            rank
            for rank in range(self.coordinator.world)
            if self.coordinator.index_of(rank) not in self.coordinator.lost
        ]
        observed = await self.coordinator.ask(dict.fromkeys(alive, Observe()), Observed, self._seconds_left())
        used = judge_transport_used(observed)
        self.transport_used = used.facts
        self.findings += used.findings
        self.unknown.append(used.unknown)

    def machines(self) -> dict[int, tuple[int, ...]]:
        """Returns the ranks of each machine, by the number of its first node: a launcher starts several processes on
        one machine, each of which is a node to the coordinator."""
        numbers: dict[tuple[str, str], int] = {}
        ranks: dict[int, tuple[int, ...]] = {}
        for index, node in sorted(self.coordinator.nodes.items()):
            key = (node.hello.node, node.hello.boot_id) if node.hello.launched else ("", str(index))
            number = numbers.setdefault(key, index)
            ranks[number] = (*ranks.get(number, ()), *self.coordinator.ranks_of(index))
        return ranks

    def _indices_by_machine(self) -> list[tuple[int, ...]]:
        machines = self.machines().values()
        return [tuple(sorted({self.coordinator.index_of(rank) for rank in ranks})) for ranks in machines]

    def _verdict(self) -> Verdict:
        if any(finding.severity is Severity.CRITICAL for finding in self.findings):
            return Verdict.FAIL
        return Verdict.UNKNOWN if any(self.unknown) else Verdict.OK

    def _transport(self) -> dict[str, Any]:
        hello = self.coordinator.nodes[self.coordinator.lead].hello
        backend = "nccl" if hello.device == "cuda" else "gloo"
        return {"backend": backend, "torch": hello.torch, "nccl": hello.nccl or None, **self.transport_used}

    def _node(self, index: int) -> RingNode:
        hello = self.coordinator.nodes[index].hello
        ranks = self.coordinator.ranks_of(index)
        rates = [self.computed[rank].per_second for rank in ranks if rank in self.computed]
        return RingNode(index, hello.node, ranks[0], len(ranks), hello.model, min(rates, default=None))

    def _device_name(self, rank: int) -> str:
        index = self.coordinator.index_of(rank)
        local = rank - self.coordinator.first_ranks[index]
        return f"{self.coordinator.name(index)} {'GPU' if self.device == 'cuda' else 'CPU of rank'} {local}"

    def _seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


def _complete_results(reports: Mapping[int, list[Measured]]) -> list[RingResult]:
    """Only what all ranks have measured is a result of the ring."""
    number = min(map(len, reports.values()))
    return [ring_result([own[place] for own in reports.values()], len(reports)) for place in range(number)]


def broken_ring(text: str, elapsed_seconds: float = 0.0) -> Ring:
    """The document of a ring that never began."""
    return Ring(Verdict.UNKNOWN, 0, {}, (), (), (), unknown=text, elapsed_seconds=elapsed_seconds)
