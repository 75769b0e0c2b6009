"""Recordings that lack something: files and lines that are lost or cut off, clocks that are set, steps that come
twice."""

import json
import random
from collections.abc import Callable
from typing import Any

from written_jobs.case import INPUT, case, maybe, who
from written_jobs.job import Job
from written_jobs.layouts import ddp, more, slower

Line = dict[str, Any]
TIMES = ("start", "end", "issued")

NO_NUMBERS = (
    '{"kind":"span","rank":4,"step":60,"name":"forward","start":NaN,"end":1}',
    '{"kind":"span","rank":4,"step":61,"name":"forward","start":1.0,"end":-5e11}',
    '{"kind":"step","rank":4,"step":62,"start":1e308,"end":2e308}',
    '{"kind":"collective","rank":4,"step":63,"group":"world","op":"all_reduce","seq":99999,"bytes":-3,"start":1,"end":2}',
    '{"kind":"collective","rank":4,"step":64,"group":"world","op":"all_reduce","seq":99998,"start":1005.0,'
    '"end":1005.5,"waited":-0.5}',
    '{"kind":"span","rank":-1,"step":60,"name":"forward","start":1,"end":2}',
)


def of(rank: int, edit: Callable[[list[str]], list[str]]) -> Callable[[int, list[str]], list[str]]:
    """Edits the lines of one rank's file."""
    return lambda number, text: edit(text) if number == rank else text


@case(verdicts=("unknown",))
def slow_rank_not_recorded() -> Job:
    """Rank 6 is 20 % slower, and its file is missing: it cannot be named."""
    return ddp(120, slower(1.2, 6), without=[6], seed=50)


@case(who(9))
def other_rank_not_recorded() -> Job:
    """Rank 9 is 15 % slower, and the file of rank 6 is missing."""
    return ddp(120, slower(1.15, 9), without=[6], seed=51)


@case(who(9))
def cut_off() -> Job:
    """All files end in the middle of a line, after 60 to 100 % of the run; rank 9 is 15 % slower."""
    rng = random.Random(52)

    def edit(rank: int, text: list[str]) -> list[str]:
        *kept, last = text[: int(len(text) * rng.uniform(0.6, 1.0))]
        return [*kept, last[: len(last) // 2]]

    return ddp(150, slower(1.15, 9), edit=edit, seed=52)


def with_times(text: list[str], moved: Callable[[Line, float], float]) -> list[str]:
    """The lines on a clock that is set: `moved(line, time)` is the time that it shows then."""
    lines = [json.loads(line) for line in text]
    for line in lines:
        line.update({name: moved(line, line[name]) for name in TIMES if line.get(name) is not None})
    return [json.dumps(line) for line in lines]


@case(who(7))
def clock_jumps() -> Job:
    """Rank 4's clock is set an hour ahead between two steps, and half an hour back later; rank 7 is 12 % slower."""

    def moved(line: Line, time: float) -> float:
        step = line.get("step", 0)
        return time + (0 if step < 50 else 3600 if step < 90 else 1800)

    return ddp(130, slower(1.12, 7), edit=of(4, lambda text: with_times(text, moved)), seed=53)


@case(who(7))
def clock_jumps_within() -> Job:
    """Rank 4's clock is set 30 s ahead within a step, and 20 s back within another; rank 7 is 12 % slower."""

    def edit(text: list[str]) -> list[str]:
        begins = {line["step"]: line["start"] for line in map(json.loads, text) if line.get("kind") == "step"}
        ahead, back = begins[50] + 0.05, begins[90] + 0.05
        return with_times(text, lambda line, time: time + (30 if time >= ahead else 0) - (20 if time >= back else 0))

    return ddp(130, slower(1.12, 7), edit=of(4, edit), seed=54)


@case(who(7))
def not_numbers() -> Job:
    """Rank 4's file has NaN, Infinity, negative and absurd times among right ones; rank 7 is 12 % slower."""
    return ddp(130, slower(1.12, 7), edit=of(4, lambda text: [*text[:400], *NO_NUMBERS, *text[400:]]), seed=55)


@case(verdicts=("ok", "unknown"))
def records_lost_on_one() -> Job:
    """A healthy job's rank 9 lost three of ten of its collectives' lines, and its last line says so."""
    rng = random.Random(84)

    def edit(text: list[str]) -> list[str]:
        kept = [line for line in text if '"collective"' not in line or rng.random() > 0.3]
        return [*kept[:-1], json.dumps(json.loads(kept[-1]) | {"lost": len(text) - len(kept)})]

    return ddp(130, edit=of(9, edit), seed=84, rate=3e9)


@case(who(3))
def rewound() -> Job:
    """The script goes back to its checkpoint of step 80 after step 99, in the same process; rank 3 is 12 % slower."""
    return ddp([*range(100), *range(80, 160)], slower(1.12, 3), seed=85)


@case(verdicts=("ok", "unknown"))
def one_disk_full() -> Job:
    """Rank 5's disk is full at step 70 of 120: its file stops at a whole line; the job went on to its end."""

    def edit(text: list[str]) -> list[str]:
        last = max(place for place, line in enumerate(text) if '"kind": "step"' in line and '"step": 70,' in line)
        return text[: last + 1]

    return ddp(120, edit=of(5, edit), seed=95)


@case(verdicts=("ok", "unknown"))
def all_reach_the_limit() -> Job:
    """Every rank's file stops within ten steps for its size, without an end; nobody died."""
    rng = random.Random(96)
    return ddp(150, edit=lambda rank, text: text[: int(len(text) * rng.uniform(0.66, 0.73))], seed=96)


@case(verdicts=("ok", "unknown"))
def negative_own_time() -> dict[str, str]:
    """All healthy ranks but 3 have an own time below nothing in one phase, as a program's error writes it."""
    rng = random.Random(97)
    lines = ['{"laggard_recording": 1, "job_id": "negative"}']
    for rank in range(8):
        lines.append(f'{{"kind":"rank","rank":{rank},"node":"n{rank // 4}","local_rank":{rank % 4}}}')
        now = 1000.0
        for step in range(60):
            forward, backward = (each * (1 + rng.gauss(0, 0.01)) for each in (0.3, 0.6))
            forward -= 0.0 if rank == 3 else 5.0
            own = f'{{"forward":{forward:.6f},"backward":{backward:.6f}}}'
            times = f'"start":{now:.6f},"end":{now + 1.0:.6f},"own":{own},"waited":0.100000'
            lines.append(f'{{"kind":"step","rank":{rank},"step":{step},{times}}}')
            now += 1.0
    return {"job.jsonl": "\n".join(lines) + "\n"}


@case(maybe(3, kinds=(*INPUT, "uneven_work")), verdicts=("fail", "unknown"))
def killed_in_a_usual_wait() -> Job:
    """Rank 3's loader starts anew every 50 steps, for 30 s; 25 s into the fourth time the job is preempted. Slow input
    now and then is right; hung is not."""
    loads = more(30.0, "input", lambda rank, step: rank == 3 and step > 0 and step % 50 == 0)

    def edit(rank: int, text: list[str]) -> list[str]:
        head = json.dumps(json.loads(text[0]) | {"beats": True})
        return [
            head,
            *text[1:-1],
            *(json.dumps(beat(rank, quiet)) for quiet in (1.0, 3.0, 8.0, 13.0, 18.0, 23.0, 25.0)),
        ]

    return ddp(200, loads, ranks=8, edit=edit, seed=105)


def beat(rank: int, quiet: float) -> Line:
    """A sign of life of a rank that finished no step for so many seconds: rank 3 is in its input, the others wait."""
    done, waits = 200 * 3, rank != 3
    flight = {"op": "all_reduce", "group": "world", "seq": done + 1, "seconds": quiet - 0.1} if waits else None
    lane = {"op": "all_reduce", "group": "world", "entered": done + waits, "done": done}
    signs = {"age_seconds": 0.0, "interval_seconds": 5.0, "flight_recorder": "absent", "lanes": [lane]}
    line = {"kind": "beat", "rank": rank, "last_step": 199, "quiet_seconds": quiet}
    line |= {"phase": "backward" if waits else "input", "in_flight": flight}
    return line | {"beat": signs | {"groups": [], "groups_age_seconds": None}}
