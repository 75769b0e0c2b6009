"""The rounds of `laggard ring --pairs`: it has pairs of nodes measure, until the plan has nothing left to find out."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.progress import Bar
from laggard.rings.authentication import strangers_text
from laggard.rings.coordinator import Coordinator, Failure, RingFailed
from laggard.rings.document import Suspect, Swap
from laggard.rings.messages import Pair as PairCommand
from laggard.rings.messages import Paired
from laggard.rings.options import bus_factor
from laggard.rings.pairs import judge

_PAIR_SECONDS: Final = {"cpu": 0.15, "cuda": 0.2}
"""The seconds for which a pair is timed in a round."""
_DEADLINE_SECONDS: Final = 20.0
"""The time after which a pair has failed that connected neither quickly nor slowly."""
_SLACK_SECONDS: Final = 5.0
_CPUS: Final = os.cpu_count() or 1
"""The number of pairs of one machine that are measured at once where CPUs exchange data and several nodes are processes
of it: more would measure how they share the CPUs."""


class PairsMeasured(NamedTuple):
    """The results of the rounds. A failed measurement took infinitely long."""

    times: Mapping[judge.Pair, tuple[float, ...]]
    wrong: Mapping[judge.Pair, int]
    errors: Mapping[judge.Pair, str]
    """The last error of a pair that failed."""
    rounds: int
    lost: tuple[Failure, ...]
    """Nodes that ended, or no longer answer."""
    disturbed: Mapping[judge.Pair, str]
    """Failures that say nothing, since strangers were connected, by pair: in words."""
    complete: bool
    """True: the plan was played to its end; False: the time was over before."""


class PairRounds:
    """`machines`: the ranks of each node that takes part, by its number."""

    def __init__(
        self, coordinator: Coordinator, machines: Mapping[int, tuple[int, ...]], size_bytes: int, progress: Bar
    ) -> None:
        self._coordinator, self._size_bytes, self._progress = coordinator, size_bytes, progress
        self._machines = dict(machines)
        self._machine_of = {rank: number for number, ranks in machines.items() for rank in ranks}
        self._times: dict[judge.Pair, tuple[float, ...]] = {}
        self._wrong: dict[judge.Pair, int] = {}
        self._errors: dict[judge.Pair, str] = {}
        self._lost: dict[int, Failure] = {}
        self._disturbed: dict[judge.Pair, str] = {}

    async def play(self, measure_until: float) -> PairsMeasured:
        """Plays rounds until the plan has none, or `measure_until`, on the monotonic clock."""
        nodes, rounds = sorted(self._machines), 0
        planned = judge.exploring_rounds(len(nodes))
        complete = False
        while time.monotonic() < measure_until:
            alive = [node for node in nodes if node not in self._lost]
            pairs = judge.next_round(alive, self._times, judge.judge_pairs(self._times), rounds)
            if not pairs:
                complete = True
                break
            self._progress.show(rounds / max(planned, rounds + 1), f"round {rounds + 1}, {len(pairs)} pairs")
            await self._play_round(rounds, pairs)
            rounds += 1
        return self._measured(rounds, complete)

    async def play_suspect(self, suspect: int, measure_until: float) -> PairsMeasured:
        """Has the node `suspect` take its peers' places, turn after turn, until it is confirmed or acquitted, or until
        `measure_until`. Pairs are then by places: the first node of each had the first one."""
        rounds = 0
        for number in range(judge.MAX_TURNS):
            for places in judge.turn(suspect, sorted(self._machines)):
                if time.monotonic() >= measure_until:
                    return self._measured(rounds, complete=False)
                if self._lost.keys().isdisjoint(places):
                    self._progress.show(
                        number / judge.MAX_TURNS, f"turn {number + 1}, places {places[0]} and {places[1]}"
                    )
                    await self._play_round(rounds, [places])
                    rounds += 1
            too_few = len(self._machines) - len(self._lost) <= judge.MIN_PEERS or suspect in self._lost
            judged = judge.judge_suspect(suspect, self._times)
            if too_few or (number + 1 >= judge.MIN_TURNS and judged.outcome != "unknown"):
                break
        return self._measured(rounds, complete=True)

    def _measured(self, rounds: int, complete: bool) -> PairsMeasured:
        return PairsMeasured(
            self._times,
            self._wrong,
            self._errors,
            rounds,
            tuple(self._lost.values()),
            {pair: text for pair, text in self._disturbed.items() if pair not in self._times},
            complete,
        )

    async def _play_round(self, number: int, pairs: list[judge.Pair]) -> None:
        """Has all pairs measure, as many at once as do not disturb one another; takes in what their ranks report."""
        waiting = {f"round{number}/{one}-{other}": (one, other) for one, other in pairs}
        names = dict(waiting)
        awaited: dict[int, str] = {}
        reports: dict[str, list[Paired]] = {name: [] for name in names}
        until = 0.0
        while awaited or waiting:
            if new := self._start_some(waiting, awaited, names):
                awaited |= new
                until = time.monotonic() + _DEADLINE_SECONDS + _SLACK_SECONDS
            if not awaited:  # the nodes of those that waited are lost
                break
            try:
                event = await self._coordinator.next_report(until)
            except TimeoutError:
                self._give_up(set(awaited))
                awaited = {}
                continue
            if isinstance(event, Failure):
                self._lose(event)
            elif isinstance(event.report, Paired) and awaited.get(event.rank) == event.report.name:
                del awaited[event.rank]
                reports[event.report.name].append(event.report)
            awaited = {rank: name for rank, name in awaited.items() if self._machine_of[rank] not in self._lost}
        for name, pair in names.items():
            if reports[name]:
                self._take_in(pair, reports[name])

    def _start_some(
        self, waiting: dict[str, judge.Pair], awaited: Mapping[int, str], names: Mapping[str, judge.Pair]
    ) -> dict[int, str]:
        """Takes those from `waiting` that can be measured now, and returns the ranks that are to report."""
        busy = Counter(host for name in set(awaited.values()) for host in self._hosts(names[name]))
        started: dict[int, str] = {}
        for name, pair in list(waiting.items()):
            hosts = self._hosts(pair)
            if not self._lost.keys().isdisjoint(pair):
                del waiting[name]
            elif all(busy[host] < _CPUS for host in hosts):
                del waiting[name]
                busy.update(hosts)
                self._send(name, self._machines[pair[0]] + self._machines[pair[1]])
                started |= {rank: name for node in pair for rank in self._machines[node]}
        return started

    def _hosts(self, pair: judge.Pair) -> set[str]:
        """The machines whose CPUs the pair shares with other nodes of the ring; GPUs are each node's own."""
        nodes = self._coordinator.nodes
        if nodes[self._coordinator.lead].hello.device == "cuda":
            return set()
        hosts = Counter(nodes[number].hello.boot_id or str(number) for number in self._machines)
        own = {nodes[number].hello.boot_id or str(number) for number in pair}
        return {host for host in own if hosts[host] > 2}

    def _send(self, name: str, ranks: tuple[int, ...]) -> None:
        seconds = _PAIR_SECONDS[self._coordinator.nodes[self._coordinator.lead].hello.device]
        command = PairCommand(name, ranks, self._size_bytes, seconds, _DEADLINE_SECONDS)
        for rank in ranks:
            self._coordinator.send(rank, command)

    def _lose(self, failure: Failure) -> None:
        """A node is gone. Without the leading one there is no ring."""
        number = self._machine_of[self._coordinator.first_ranks[failure.node]]
        if failure.node == self._coordinator.lead:
            raise RingFailed((failure,))
        self._lost.setdefault(number, failure)

    def _give_up(self, ranks: set[int]) -> None:
        """Nodes whose ranks do not even report an error stand still."""
        for rank in sorted(ranks):
            number = self._coordinator.index_of(rank)
            name = self._coordinator.name(number)
            strangers = self._coordinator.strangers.found(ranks)
            text = strangers_text(strangers, name) if strangers else f"{name} did not answer in time"
            self._lose(Failure(number, text, False, left=bool(strangers)))

    def _take_in(self, pair: judge.Pair, reports: list[Paired]) -> None:
        """A pair of which a node was lost in this round says nothing about the other one."""
        if not self._lost.keys().isdisjoint(pair):
            return
        errors = [report.error for report in reports if report.error]
        error = errors[0] if errors else ""
        ranks = self._machines[pair[0]] + self._machines[pair[1]]
        strangers = self._coordinator.strangers.found(ranks, errors) if error else ()
        if strangers:
            name = self._coordinator.name
            self._disturbed[pair] = strangers_text(strangers, f"the link between {name(pair[0])} and {name(pair[1])}")
            return
        seconds = math.inf if error else max(report.seconds for report in reports)
        self._times[pair] = (*self._times.get(pair, ()), seconds)
        if error:
            self._errors[pair] = error
        wrong = sum(report.wrong for report in reports)
        if wrong:
            self._wrong[pair] = self._wrong.get(pair, 0) + wrong


class Computing(NamedTuple):
    """What was measured of the suspect's computing: its rate over its peers' median, whether that is slow, how many
    values were wrong, and why it could not be judged (empty: it was)."""

    ratio: float | None
    slow: bool
    wrong: int
    unknown: str


def suspect_of(
    number: int,
    node: str,
    measured: PairsMeasured,
    judged: judge.SuspectJudgement,
    computing: Computing,
    size_bytes: int,
    ranks: int,
) -> Suspect:
    """`ranks`: of a pair. What is wrong, gone or slow in any way confirms the suspicion; to be acquitted the node has
    to be as fast as its peers in all."""
    outcome, why = _outcome(number, measured, judged, computing)
    return Suspect(
        number,
        node,
        outcome,
        why,
        None if judged.ratio is None else 1 / judged.ratio,
        computing.ratio,
        tuple(_swap(places, times, size_bytes, ranks) for places, times in sorted(measured.times.items())),
    )


def _outcome(
    number: int, measured: PairsMeasured, judged: judge.SuspectJudgement, computing: Computing
) -> tuple[str, str]:
    left = next((failure for failure in measured.lost if failure.node == number), None)
    if left is not None:
        return ("unknown" if left.left else "confirmed"), f"it left the ring: {left.text}"
    wrong_pairs, _ = judge.culprits_of(judge.without_places({pair: (0.0,) * n for pair, n in measured.wrong.items()}))
    if computing.wrong or number in wrong_pairs:
        return "confirmed", "it gave wrong results"
    if computing.slow and computing.ratio is not None:
        return "confirmed", f"it computes at {_percent(computing.ratio)} of its peers' rate"
    if judged.outcome == "acquitted" and computing.unknown:
        return "unknown", f"{judged.why}, but its computing could not be judged: {computing.unknown}"
    if judged.outcome == "unknown" and not measured.complete:
        return "unknown", f"--seconds were over: {judged.why}"
    return judged.outcome, judged.why


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _swap(places: tuple[int, int], times: Sequence[float], size_bytes: int, ranks: int) -> Swap:
    best = min(times)
    if math.isinf(best):
        return Swap(*places, len(times), None, None)
    return Swap(*places, len(times), best, size_bytes / best * bus_factor("all_reduce", ranks))


def pairs_without_places(measured: PairsMeasured) -> PairsMeasured:
    """The same by pairs, whichever place each node had, for the matrix and the findings."""
    wrong: dict[tuple[int, int], int] = {}
    for pair, count in measured.wrong.items():
        key = min(pair), max(pair)
        wrong[key] = wrong.get(key, 0) + count
    return measured._replace(
        times=judge.without_places(measured.times),
        wrong=wrong,
        errors=_by_pair(measured.errors),
        disturbed=_by_pair(measured.disturbed),
        complete=True,
    )


def _by_pair(texts: Mapping[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    return {(min(pair), max(pair)): text for pair, text in texts.items()}
