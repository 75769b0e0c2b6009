"""A small simulator of training jobs, whose recordings have the form of docs/development/contracts.md.

Each rank runs a list of items, step after step:

    ("work", phase, seconds)                        its own time
    ("coll", group, op, bytes)                      a collective that blocks until all came and the transfer has passed
    ("issue", key, group, op, bytes), ("wait", key)     the same beside work: groups carry them out in turn
    ("send", peer, bytes), ("recv", peer, bytes)    a message: a send is over at once, a receive when it came
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Item = tuple[Any, ...]
Transfer = Callable[[str, str, int, int, float], float]
"""The seconds of a transfer by its group, operation, bytes, step, and the seconds that it usually takes."""

PACE_SPREAD = 0.003
"""The standard deviation of how much longer a rank takes than others, always."""
JITTER, SHORTEST = 0.01, 0.2
"""The standard deviation of a piece of work, and the least that it takes of its usual time."""
LATENCY_SECONDS = 30e-6
"""The seconds from rank to rank of a transfer without bytes."""


class Job:
    """`groups`: role and members by name. `rate`: bytes a second of the network. `without`: ranks that leave no file;
    `edit` may change the lines of a rank's file."""

    def __init__(
        self,
        ranks: int,
        per_node: int,
        groups: Mapping[str, tuple[str, Sequence[int]]],
        *,
        seed: int,
        position: Callable[[int], dict[str, int]] | None = None,
        rate: float = 20e9,
        transfer: Transfer | None = None,
        without: Sequence[int] = (),
        edit: Callable[[int, list[str]], list[str]] | None = None,
    ) -> None:
        self.size, self.per_node, self.groups, self.position = ranks, per_node, groups, position
        self.rate, self.without, self.edit = rate, without, edit
        self.transfer: Transfer = transfer or (lambda group, op, size, step, usual: usual)
        self.rng = random.Random(seed)
        self.pace = [1 + self.rng.gauss(0, PACE_SPREAD) for _ in range(ranks)]
        nodes = sorted({self.node(rank) for rank in range(ranks)})
        self.clocks = {node: (1000 + self.rng.uniform(-3, 3), 1 + self.rng.uniform(-15e-6, 15e-6)) for node in nodes}
        self.now = [0.0] * ranks
        self.lines: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        self._numbers: defaultdict[tuple[Any, ...], int] = defaultdict(int)

    def node(self, rank: int) -> str:
        return f"n{rank // self.per_node:02d}"

    def noisy(self, seconds: float, rank: int) -> float:
        if seconds <= 0:
            return 0.0
        return seconds * self.pace[rank] * max(SHORTEST, 1 + self.rng.gauss(0, JITTER))

    def usual(self, op: str, size: int, members: int) -> float:
        """The seconds of a collective on rings."""
        factor = 2.0 if op == "all_reduce" else 1.0
        return LATENCY_SECONDS * max(1, members - 1) + factor * size * (members - 1) / max(1, members) / self.rate

    def run(
        self,
        steps: Iterable[int],
        programme: Callable[[int, int], list[Item] | None],
        work: Callable[[int, int], int] | None = None,
        after: Callable[[int], None] | None = None,
    ) -> Job:
        """Runs the steps of these numbers; `programme(rank, step)` is None of a rank that is not there yet, and `work`
        the elements of the model's input."""
        for step in steps:
            asked = {rank: programme(rank, step) for rank in range(self.size)}
            programmes = {rank: items for rank, items in asked.items() if items is not None}
            begun = {rank: self.now[rank] for rank in programmes}
            _Step(self, step, programmes).run()
            for rank in programmes:
                told = {} if work is None else {"work": work(rank, step)}
                self._keep("step", rank, step, **self.times(rank, begun[rank], self.now[rank]), **told)
            if after:
                after(step)
        return self

    def pause(self, seconds: float) -> None:
        """Everybody stands still, as when a job is suspended and goes on."""
        self.now = [each + seconds for each in self.now]

    def level(self) -> None:
        """All ranks go on from the same moment."""
        self.now = [max(self.now)] * self.size

    def times(self, rank: int, start: float, end: float) -> dict[str, float]:
        """Both on the clock of the rank's node."""
        offset, pace = self.clocks[self.node(rank)]
        return {"start": round(offset + start * pace, 7), "end": round(offset + end * pace, 7)}

    def keep_span(self, rank: int, step: int, phase: str, start: float, end: float) -> None:
        if phase and end > start:
            self._keep("span", rank, step, name=phase, **self.times(rank, start, end))

    def keep_collective(
        self, rank: int, step: int, what: tuple[str, str, int], start: float, end: float, waited: float | None = None
    ) -> None:
        group, op, size = what
        times = self.times(rank, start, end)
        about = {"group": group, "op": op, "seq": self._number(rank, group, op), "bytes": size}
        told = {} if waited is None else {"waited": round(waited, 7)}
        self._keep("collective", rank, step, **about, issued=times["start"], **times, clock="device", **told)

    def keep_message(self, rank: int, step: int, op: str, peer: int, size: int, start: float, end: float) -> None:
        times = self.times(rank, start, end)
        about = {"group": "pp", "op": op, "peer": peer, "seq": self._number(rank, op, peer), "bytes": size}
        self._keep("collective", rank, step, **about, issued=times["start"], **times)

    def _number(self, *stream: Any) -> int:
        self._numbers[stream] += 1
        return self._numbers[stream] - 1

    def _keep(self, kind: str, rank: int, step: int, **about: Any) -> None:
        self.lines[rank].append({"kind": kind, "rank": rank, "step": step, **about})

    def files(self, job_id: str) -> dict[str, str]:
        """The text of each file by its name."""
        found = {}
        for rank, lines in enumerate(self.lines):
            if rank not in self.without and lines:
                head = {"laggard_recording": 1, "job_id": job_id, "ends": True}
                end = {"kind": "end", "rank": rank, "lost": 0, "at_seconds": lines[-1]["end"] + 0.01}
                text = [json.dumps(line) for line in (head, self._about(rank), *lines, end)]
                found[f"rank-{rank}.jsonl"] = "\n".join(self.edit(rank, text) if self.edit else text) + "\n"
        return found

    def _about(self, rank: int) -> dict[str, Any]:
        offset, _ = self.clocks[self.node(rank)]
        found = {"kind": "rank", "rank": rank, "node": self.node(rank), "local_rank": rank % self.per_node}
        found |= {"gpu": f"GPU-{rank:04d}", "attempt": 0, "world_size": self.size}
        found |= {"unix_minus_clock": 1_769_000_000.0 - offset}
        if self.position:
            found["position"] = self.position(rank)
        mine = {name: it for name, it in self.groups.items() if rank in it[1]}
        return found | {"groups": {name: {"role": role, "ranks": list(of)} for name, (role, of) in mine.items()}}


class _Step:
    """One step of the ranks in `programmes`. Collectives go by group and number within the step."""

    def __init__(self, job: Job, number: int, programmes: Mapping[int, list[Item]]) -> None:
        self.job, self.number, self.programmes = job, number, programmes
        self.at = dict.fromkeys(programmes, 0)
        self.arrived: defaultdict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        self.over: dict[tuple[str, int], float] = {}
        self.free: defaultdict[str, float] = defaultdict(float)  # when a group's communicator is
        self.joined: dict[tuple[int, Any], tuple[str, int]] = {}  # by rank, and place or key: the collective
        self.counts: defaultdict[tuple[int, str], int] = defaultdict(int)  # by rank and group
        self.sent: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        self.received: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.issued: dict[tuple[int, str], tuple[str, str, int]] = {}

    def run(self) -> None:
        waiting = set(self.programmes)
        while waiting:
            before = sum(self.at.values())
            for rank in sorted(waiting):
                if self._finishes(rank):
                    waiting.discard(rank)
            if waiting and sum(self.at.values()) == before:
                raise RuntimeError(f"deadlock in step {self.number}: {sorted(waiting)}")

    def _finishes(self, rank: int) -> bool:
        """Whether the rank comes to the step's end now, or has to wait."""
        items = self.programmes[rank]
        while self.at[rank] < len(items):
            kind, *what = items[self.at[rank]]
            if not getattr(self, f"_{kind}")(rank, *what):
                return False
            self.at[rank] += 1
        return True

    def _work(self, rank: int, phase: str, seconds: float) -> bool:
        job, start = self.job, self.job.now[rank]
        job.now[rank] += job.noisy(seconds, rank)
        job.keep_span(rank, self.number, phase, start, job.now[rank])
        return True

    def _join(self, rank: int, key: Any, group: str, op: str, size: int) -> tuple[str, int]:
        """The rank comes to a collective, which the last one of its members begins."""
        if (rank, key) not in self.joined:
            one = self.joined[rank, key] = (group, self.counts[rank, group])
            self.counts[rank, group] += 1
            self.arrived[one][rank] = self.job.now[rank]
            members = [it for it in self.job.groups[group][1] if it in self.programmes]
            if len(self.arrived[one]) >= len(members):
                first = max(*self.arrived[one].values(), self.free[group])
                usual = self.job.usual(op, size, len(members))
                self.over[one] = first + self.job.transfer(group, op, size, self.number, usual)
                self.free[group] = self.over[one]
        return self.joined[rank, key]

    def _coll(self, rank: int, *what: Any) -> bool:
        one = self._join(rank, self.at[rank], *what)
        if one not in self.over:
            return False
        self.job.keep_collective(rank, self.number, what, self.arrived[one][rank], self.over[one])  # type: ignore[arg-type]
        self.job.now[rank] = max(self.job.now[rank], self.over[one])
        return True

    def _issue(self, rank: int, key: str, *what: Any) -> bool:
        self._join(rank, key, *what)
        self.issued[rank, key] = what  # type: ignore[assignment]
        return True

    def _wait(self, rank: int, key: str) -> bool:
        one, now = self.joined[rank, key], self.job.now[rank]
        if one not in self.over:
            return False
        end = max(now, self.over[one])
        start = self.arrived[one][rank]
        self.job.keep_collective(rank, self.number, self.issued[rank, key], start, end, end - now)
        self.job.now[rank] = end
        return True

    def _send(self, rank: int, peer: int, size: int) -> bool:
        job, now = self.job, self.job.now[rank]
        usual = LATENCY_SECONDS + size / job.rate
        self.sent[rank, peer].append(now + job.transfer(f"p2p:{rank}-{peer}", "send", size, self.number, usual))
        job.keep_message(rank, self.number, "send", peer, size, now, now + usual)
        job.now[rank] += usual
        return True

    def _recv(self, rank: int, peer: int, size: int) -> bool:
        number, come, now = self.received[peer, rank], self.sent[peer, rank], self.job.now[rank]
        if number >= len(come):
            return False
        self.received[peer, rank] += 1
        self.job.now[rank] = max(now, come[number])
        self.job.keep_message(rank, self.number, "recv", peer, size, now, self.job.now[rank])
        return True
