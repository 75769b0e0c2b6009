"""Writes a rank's records into a recording, for `laggard locate --trace`. docs/contracts.md describes its lines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from laggard.constants import PHASES
from laggard.processes.identity import own_identity
from laggard.rankfile import Lane
from laggard.rankfile.fact_names import (
    DEEPSPEED,
    ENDING,
    ENVIRONMENT,
    GPU,
    HIDDEN_WAITS,
    OWN_THREADS,
    SCRIPT,
    STARTED,
    UNSEEN_WAITS,
)
from laggard.rankfile.layout import LANE_SHIFT, SEQUENCE_MASK
from laggard.trainer_hooks.output.identity import Identity
from laggard.trainer_hooks.output.line_file import LineFile
from laggard.trainer_hooks.output.recording_folder import rank_file_name
from laggard.trainer_hooks.record.aggregator import BEFORE_STEPS
from laggard.trainer_hooks.record.digest_log import DIGEST_LOG
from laggard.trainer_hooks.record.facts import FACTS
from laggard.trainer_hooks.record.records import RECORD_NUMBERS, StepRecord, Totals

_SETTLE_SECONDS: Final = 0.3  # three times as long as the file's thread takes to come round
_MIN_NS: Final = 10_000
_MIN_SHARE: Final = 0.01


class RecordingSink:
    """A sink (record/records.py) that writes a recording: JSON lines, one file for each rank. A process that is killed,
    or ends by os._exit, leaves out its last tenth of a second, its unfinished step and the `end` record; where it stood
    for a while before, write_at_once() has told in what.

    Attributes for that (quiet_beats.py): `quiet_since_ns`, the end of the last step, before it the start, on the clock
    of the records; `folder`; `last_step`, None before the first; `lanes`, in the order of their indices.
    """

    def __init__(self, directory: str, identity: Identity) -> None:
        """Raises OSError where the file cannot be created; FileExistsError where the directory holds this rank's
        recording already: nothing is overwritten."""
        os.makedirs(directory, exist_ok=True)
        self.folder = directory
        about = {"job_id": identity.job_id, "ends": True, "beats": True, "process": own_identity()}
        name = rank_file_name(identity.rank, identity.attempt)
        self._file = LineFile(os.path.join(directory, name), json.dumps({"laggard_recording": 1, **about}))
        self._identity = identity
        self.lanes: list[Lane] = []
        self.quiet_since_ns = time.perf_counter_ns()
        self.last_step: int | None = None
        self._groups: dict[str, dict[str, Any]] = {}
        self._waited = 0  # nanoseconds, in the collectives of the present step
        self._threads_told: Any = None
        self._environment_told: Any = None
        self._rank_line: tuple[Any, ...] | None = None  # how many groups it named, the GPU, the facts of waits

    def _write(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value))

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        self.lanes.append(lane)
        self._groups[lane.group] = {"role": lane.role, "ranks": list(members)}

    def _write_rank_line(self) -> None:
        """Writes the rank's own line, and again once there are new groups, the GPU is known, or it turns out that waits
        are not seen."""
        identity = self._identity
        gpu = FACTS.get(GPU) or identity.gpu
        waits = {name: FACTS.get(name) for name in (UNSEEN_WAITS, HIDDEN_WAITS) if FACTS.get(name)}
        if self._rank_line == (len(self._groups), gpu, waits):
            return
        self._rank_line = len(self._groups), gpu, waits
        position = {  # in the largest group of a role: an expert's dp group is a part of the whole dp group
            group["role"]: group["ranks"].index(identity.rank)
            for group in sorted(self._groups.values(), key=lambda group: len(group["ranks"]))
            if group["role"] in ("dp", "tp", "pp", "ep") and identity.rank in group["ranks"]
        }
        self._write(
            {
                "kind": "rank",
                "rank": identity.rank,
                "node": identity.node,
                "local_rank": identity.local_rank,
                "gpu": gpu,
                "attempt": identity.attempt,
                "world_size": identity.world_size,
                "unix_minus_clock": time.time() - time.perf_counter(),
                "position": position,
                "groups": self._groups,
                "facts": {
                    **{name: FACTS.get(name) for name in (SCRIPT, STARTED) if FACTS.get(name) is not None},
                    **waits,
                },
            }
        )

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        self._write_rank_line()
        self._waited += sum(numbers[3::RECORD_NUMBERS])
        for word, arrival, end, waited, size in zip(*[iter(numbers)] * RECORD_NUMBERS, strict=True):
            lane = self.lanes[word >> LANE_SHIFT]
            peer = {} if lane.peer < 0 else {"peer": lane.peer}
            self._write(
                {
                    "kind": "collective",
                    "rank": self._identity.rank,
                    "step": None if step == BEFORE_STEPS else step,
                    "group": lane.group,
                    "op": lane.op,
                    **peer,
                    "seq": (word & SEQUENCE_MASK) - 1,
                    "bytes": size,
                    "issued": launched.get(word, arrival) / 1e9,
                    "start": arrival / 1e9,
                    "end": end / 1e9 if end else None,
                    "waited": waited / 1e9,
                    "clock": "device" if word in launched else "host",
                }
            )

    def step(self, record: StepRecord, totals: Totals) -> None:
        self._write_rank_line()
        rank, step = self._identity.rank, record.step
        for span in record.spans:
            self._write(
                {
                    "kind": "span",
                    "rank": rank,
                    "step": step,
                    "name": PHASES[span.phase],
                    "start": span.start / 1e9,
                    "end": span.end / 1e9,
                    "micro": span.micro,
                }
            )
        times = {"start": record.start / 1e9, "end": record.end / 1e9}
        work = {"work": record.work} if record.work else {}
        self._write({"kind": "step", "rank": rank, "step": step, **times, **self._own(record), **work})
        self._waited = 0
        self._file.flush()
        self.quiet_since_ns, self.last_step = record.end, step
        totals.lost += self._file.newly_lost()

    def _own(self, record: StepRecord) -> dict[str, Any]:
        """The own times of a step that waited longer than its collectives say, as for functional ones: where it did is
        in no line."""
        if record.waited - self._waited < max(_MIN_NS, record.waited * _MIN_SHARE):
            return {}
        own = {name: seconds / 1e9 for name, seconds in zip(PHASES, record.phases, strict=True)}
        return {"own": own, "waited": record.waited / 1e9}

    def write_at_once(self, value: Mapping[str, Any]) -> None:
        """Writes a line of `value`, with the rank and its last step, without waiting for the step's end. For another
        thread than the other methods', too."""
        about = {"kind": value["kind"], "rank": self._identity.rank, "last_step": self.last_step}
        self._file.write_at_once(json.dumps({**about, **value}))

    def write_departure(self) -> None:
        """Writes that the rank leaves torch.distributed in order, and waits for that: Ray ends its workers then."""
        self.write_at_once({"kind": "left", "at_unix": time.time()})
        self._file.settle(_SETTLE_SECONDS)

    def flush(self, totals: Totals) -> None:
        """Writes what surrounds the training, how the process's own threads ran, and digests, where that is new."""
        self._write_environment()
        self._write_digests()
        told = FACTS.get(OWN_THREADS)
        if told is not None and told is not self._threads_told:
            self._threads_told = told
            self._write({"kind": "threads", "rank": self._identity.rank, OWN_THREADS: told})

    def _write_environment(self) -> None:
        told = {name: FACTS.get(name) for name in (ENVIRONMENT, DEEPSPEED) if FACTS.get(name)}
        if told and told != self._environment_told:
            self._environment_told = told
            self._write({"kind": "environment", "rank": self._identity.rank, **told})

    def _write_digests(self) -> None:
        for told in DIGEST_LOG.take():
            self._write({"kind": "digest", "rank": self._identity.rank, **told})

    def write_ending(self) -> None:
        """Writes that the rank ends by an exception, and waits for that: what catches it may kill the process."""
        self._file.write_at_once(json.dumps(self._end()))
        self._file.settle(_SETTLE_SECONDS)

    def close(self) -> None:
        self._write_rank_line()
        self._write_environment()
        self._write_digests()
        self._write(self._end())
        self._file.close()

    def _end(self) -> dict[str, Any]:
        end = {"lost": self._file.lost, "at_seconds": time.perf_counter(), **(FACTS.get(ENDING) or {})}
        return {"kind": "end", "rank": self._identity.rank, **end}
