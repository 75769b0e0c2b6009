"""Writes the last lines of ranks whose job stands still: beats, what they see of others, and how they end."""

import json
from collections.abc import Iterator

from fluid_simulator.chance import Generator
from fluid_simulator.happened import Standstill
from fluid_simulator.lines import Writer, peer_field
from fluid_simulator.operations import Lane, Operation
from fluid_simulator.plan import Plan
from fluid_simulator.rank import Rank
from fluid_simulator.run import Run

FIRST_BEAT_SECONDS = 1.0
MAX_INTERVAL_SECONDS = 5.0
NOTICED_SECONDS = 0.3
"""The time after which a rank sees that another of its machine was stopped, or is gone."""
SILENT_SECONDS = 0.3
"""The Flight Recorder's group is silent for so much less than the rank."""
EXCEPTIONS = ("OutOfMemoryError", "ValueError", "KeyError")
SILENT_FAMILIES = ("dead", "node_dead", "stopped")
"""Families in which who is at fault writes nothing any more."""


class Standing:
    """A rank of a job that stands still. `at_fault`: it is the one that stopped. `gives_up`: it ends with an error, as
    what it waits for failed; `raised`: it ended by an exception of its own."""

    def __init__(self, plan: Plan, run: Run, rank: Rank, standstill: Standstill, writer: Writer) -> None:
        self.plan, self.rank, self.how, self.writer = plan, rank, standstill, writer
        family, blocking = standstill.family, plan.job.settings.blocking
        self.at_fault = rank.number in standstill.ranks and family != "net_dead"
        peers = rank.number not in standstill.ranks and family in ("hang_compute", "hang_input", "dead", "node_dead")
        self.gives_up = blocking and peers
        self.raised = standstill.by_exception and rank.number in standstill.ranks
        self.quick = family in ("dead", "node_dead")
        machine = plan.cluster.machine
        here = [other for other in run.ranks if machine(other.number) == machine(rank.number) and other is not rank]
        self.stopped_here = [other for other in here if other.number in standstill.ranks]
        self.last_step = rank.steps[-1].number if rank.steps else -1
        self.in_flight = self._in_flight()

    @property
    def ends_by_itself(self) -> bool:
        return self.gives_up or self.raised

    @property
    def _stuck(self) -> bool:
        """Whether its host stands still, or is gone."""
        return self.at_fault and self.how.family in ("hang_compute", "hang_input", *SILENT_FAMILIES)

    def _in_flight(self) -> Operation | None:
        """The collective in which the host waits, or the last that it launched."""
        rank = self.rank
        if self.plan.job.settings.blocking:
            return None if self._stuck else rank.stood_at
        last = rank.last_launched
        before_phase = last is None or self.how.family == "hang_input" or last.issued < rank.phase_begun
        return None if self._stuck and before_phase else last

    @property
    def _phase(self) -> str | None:
        stood = self.plan.job.settings.blocking or (self.at_fault and self.how.family != "hang_gpu")
        return self.rank.stood_in if stood else self.rank.phase

    def lines(self, rng: Generator) -> Iterator[str]:
        since, killed = self.how.since, self.how.since + self.how.wait
        after = 0.05 + 0.6 * rng.random() if self.quick else self.how.wait * 0.8 + 0.3 * rng.random()
        gave_up = since + after
        until = gave_up if self.gives_up else killed
        if self.at_fault and self.how.family in SILENT_FAMILIES:
            until = since
        yield from self._beats(rng, until)
        if self.gives_up:
            yield from self._given_up(gave_up)
        elif self.raised:
            name = EXCEPTIONS[self.rank.number % 3]
            yield self.writer.end(since + 0.01, f',"exit_code":1,"exception":"{name}","others_failed":false')

    def _beats(self, rng: Generator, until: float) -> Iterator[str]:
        """Looks each second; a beat is due the later, the longer nothing has moved."""
        ended = self.rank.steps[-1].end if self.rank.steps else 0.0
        due, told = FIRST_BEAT_SECONDS, False
        time = ended + 1.0 + rng.random()
        while time < until:
            quiet = time - ended
            if quiet >= due:
                interval = min(max(1.0, quiet / 2), MAX_INTERVAL_SECONDS)
                due = quiet + interval
                yield self._beat(rng, time, quiet, interval)
                if time > self.how.since + NOTICED_SECONDS and not told:
                    seen = list(self._seen(time))
                    told = bool(seen) and self.how.family == "dead"
                    yield from seen
            time += 1.0

    def _beat(self, rng: Generator, time: float, quiet: float, interval: float) -> str:
        rank = self.rank
        lanes = ",".join(self._lane(lane) for lane in sorted(rank.entered))
        recorder = "on" if self.how.recorder else "off"
        return (
            f'{{"kind":"beat","rank":{rank.number},"last_step":{self.last_step},"quiet_seconds":{quiet:.3f},'
            f'"phase":{json.dumps(self._phase)},"in_flight":{self._flight(time)},'
            f'"beat":{{"age_seconds":0.0,"interval_seconds":{interval:.3f},'
            f'"flight_recorder":"{recorder}","lanes":[{lanes}],{self._groups(rng, quiet)}}}}}'
        )

    def _flight(self, time: float) -> str:
        part = self.in_flight
        if part is None:
            return "null"
        return (
            f'{{"op":"{part.op}","group":"{part.group.name}",{peer_field(part.peer)}"seq":{part.number + 1},'
            f'"seconds":{max(0.0, time - part.issued):.3f}}}'
        )

    def _lane(self, lane: Lane) -> str:
        peer = f'"peer":{lane.peer},' if lane.peer >= 0 else ""
        counts = f'"entered":{self.rank.entered[lane]},"done":{self.rank.done[lane]}'
        return f'{{"op":"{lane.op}","group":"{lane.group}",{peer}{counts}}}'

    def _groups(self, rng: Generator, quiet: float) -> str:
        """The group of all ranks, as torch's Flight Recorder tells of it: launched, begun and completed on the GPU."""
        if not self.how.recorder:
            return '"groups":[]'
        rank, world = self.rank, self.plan.job.world.name
        enqueued = sum(count for lane, count in rank.entered.items() if lane.group == world)
        completed = sum(count for lane, count in rank.done.items() if lane.group == world)
        return (
            f'"groups":[{{"name":"#0","enqueued":{enqueued},"started":{rank.started_of_world},'
            f'"completed":{completed},"seconds":{max(0.0, quiet - SILENT_SECONDS):.3f}}}],'
            f'"groups_age_seconds":{rng.random() * 0.5:.3f}'
        )

    def _seen(self, time: float) -> Iterator[str]:
        """Yields what the rank sees of those of its machine that were stopped, or are gone."""
        family = self.how.family
        silent = self.at_fault and family in SILENT_FAMILIES
        if silent or not (family == "stopped" or (family == "dead" and not self.raised)):
            return
        for other in self.stopped_here:
            yield self._saw(other, "stopped" if family == "stopped" else "gone", time)

    def _saw(self, other: Rank, state: str, time: float) -> str:
        ending = ',"exit_code":1' if self.how.by_exception else ',"signal":"SIGKILL"'
        return (
            f'{{"kind":"saw","rank":{self.rank.number},"last_step":{self.last_step},"of":{other.number},'
            f'"state":"{state}","at_unix":{self.writer.unix(time)}{ending if state == "gone" else ""},'
            f'"phase":{json.dumps(other.stood_in)},"in_flight":null}}'
        )

    def _given_up(self, at: float) -> Iterator[str]:
        """The end of a rank whose collective failed."""
        for other in self.stopped_here if self.how.family == "dead" else ():
            yield self._saw(other, "gone", at)
        part = self.rank.stood_at
        if part is not None and part.ready is not None:
            yield self.writer.unfinished(part, at)
        yield self.writer.end(at, ',"exit_code":1,"exception":"RuntimeError","others_failed":true')
