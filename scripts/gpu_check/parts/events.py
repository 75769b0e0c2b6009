"""Whether the hooks' times on a GPU are true: work of known length in every place, compared with bare CUDA events.

Needs torch and one GPU, nothing else: no NCCL, no second rank.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpu_check import lab as lab_module
from gpu_check.lab import Lab, StepTruth, cuda_lab
from gpu_check.outcome import Context, Outcome, judged, torch_on_gpu
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT, OPTIMIZER

TOLERANCE_RATIO, TOLERANCE = 0.02, 0.3e-3  # of the truth; seconds, for the launches between a mark and a bare event


class Case(NamedTuple):
    """`own`: the phases whose own time is compared, and how long it is meant to be; `waited`: the same for the wait.
    In milliseconds."""

    name: str
    actions: dict[int, Callable[[], None]]
    own: dict[int, float]
    waited: float


def run(context: Context) -> Iterator[Outcome]:
    lab = cuda_lab(torch_on_gpu())
    yield clocks(lab)
    yield from accuracy(lab)
    yield no_waiting(lab)
    yield asked_while_another_thread_waits(lab)
    yield errors(lab)


def clocks(lab: Lab) -> Outcome:
    """Compares a fifth of a second on the device with the same on the host. All other checks rely on the device's."""
    lab.synchronize()
    began = time.perf_counter()
    first = lab.event()
    lab.work(0.2)
    last = lab.event()
    lab.synchronize()
    host = time.perf_counter() - began
    device = lab.between(first, last)
    good = 0.95 * host - 0.01 <= device <= 1.01 * host
    return judged("the GPU's clock", good, f"{device * 1e3:.1f} ms there, {host * 1e3:.1f} ms on the host")


def accuracy(lab: Lab) -> list[Outcome]:
    """Puts work of 5 to 15 ms in each place, and compares own time by phase and waiting with bare events."""
    measured = [(case, lab.steps(case.actions)) for case in cases(lab)]
    return [*(judge(case, steps) for case, steps in measured), lengths(measured)]


def cases(lab: Lab) -> list[Case]:
    reduce, ms = lab.reduce, lab_module.MS

    def blocking(transfer: float) -> Callable[[], None]:
        def action() -> None:
            with lab.waiting():
                reduce(lab.tensor, transfer * ms)

        return action

    def overlapped(transfer: float, work: float) -> Callable[[], None]:
        def action() -> None:
            handle = reduce(lab.tensor, transfer * ms, async_op=True)
            lab.work(work * ms)
            with lab.waiting():
                handle.wait()

        return action

    def on_second_stream(transfer: float, work: float) -> Callable[[], None]:
        def action() -> None:
            with lab.second():
                reduce(lab.tensor, transfer * ms)
            lab.work(work * ms)
            with lab.waiting():
                lab.join()

        return action

    def busy_then(action: Callable[[], None]) -> dict[int, Callable[[], None]]:
        return {FORWARD: lambda: lab.work(5 * ms), BACKWARD: action}

    def slow_input() -> None:
        time.sleep(10 * ms)

    delays = [
        Case(f"work in {name}", {phase: lambda: lab.work(10 * ms)}, {phase: 10}, 0)
        for name, phase in (("forward", FORWARD), ("backward", BACKWARD), ("optimizer", OPTIMIZER))
    ]
    return [
        *delays,
        Case("a collective that blocks", busy_then(blocking(10)), {FORWARD: 5}, 10),
        Case("a collective hidden behind work", busy_then(overlapped(5, 15)), {BACKWARD: 15}, 0),
        Case("a collective half hidden", busy_then(overlapped(15, 5)), {BACKWARD: 5}, 10),
        Case("on a second stream, hidden", busy_then(on_second_stream(5, 15)), {BACKWARD: 15}, 0),
        Case("on a second stream, half hidden", busy_then(on_second_stream(15, 5)), {BACKWARD: 5}, 10),
        Case("input while the GPU works", {INPUT: slow_input, FORWARD: lambda: lab.work(15 * ms)}, {INPUT: 0}, 0),
        Case("input that the GPU waits for", {INPUT: slow_input}, {INPUT: 10}, 0),
    ]


def judge(case: Case, steps: list[tuple[Any, StepTruth]]) -> Outcome:
    if not steps:
        return judged(case.name, False, f"not all of {lab_module.STEPS} steps were recorded")
    pairs = {
        f"own {case_name(phase)}": [(truth.own(phase), step.phases[phase] / 1e9) for step, truth in steps]
        for phase in case.own
    }
    pairs["waited"] = [(truth.waited, step.waited / 1e9) for step, truth in steps]
    good = all(abs(error(each)) <= TOLERANCE + TOLERANCE_RATIO * due(each) for each in pairs.values())
    measured = {name: (1e3 * (due(each) + error(each)), 1e3 * due(each)) for name, each in pairs.items()}
    texts = [f"{name} {found:.2f} ms (due {truth:.2f})" for name, (found, truth) in measured.items()]
    return judged(case.name, good, ", ".join(texts))


def case_name(phase: int) -> str:
    return {INPUT: "input", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"}[phase]


def due(pairs: list[tuple[float, float]]) -> float:
    return statistics.median(truth for truth, _ in pairs)


def error(pairs: list[tuple[float, float]]) -> float:
    """The median of what was measured too much."""
    return statistics.median(measured - truth for truth, measured in pairs)


def lengths(measured: list[tuple[Case, list[tuple[Any, StepTruth]]]]) -> Outcome:
    """Whether the work had about the length that it was meant to have: on work of no length all times would agree."""
    ratios = [
        truth.own(phase) / (meant * lab_module.MS)
        for case, steps in measured
        for phase, meant in case.own.items()
        for _, truth in steps
        if meant
    ]
    ratio = statistics.median(ratios) if ratios else 0.0
    return judged("work of known length", 0.5 < ratio < 2, f"{ratio:.3f} of what was asked for")


def no_waiting(lab: Lab) -> Outcome:
    """Queues half a second of work, and checks that thirty collectives and three steps are launched in far less."""
    reduce = lab.reduce
    lab.work(0.5)
    began = time.perf_counter()
    for _ in range(3):  # no more: CUDA itself makes the host wait where about a thousand launches are queued
        lab.recorder.enter(BACKWARD)
        for _ in range(10):
            reduce(lab.tensor, 0.0)
        lab.recorder.leave()
        lab.recorder.end_step(lab.recorder.step + 1)
    spent = time.perf_counter() - began
    lab.synchronize()
    return judged("no waiting for the GPU", spent < 0.25, f"{spent * 1e3:.1f} ms for 30 collectives (due < 250)")


def asked_while_another_thread_waits(lab: Lab) -> Outcome:
    """Asks for an event while another thread waits for the device, as a checkpoint's thread does: the answer must come
    at once."""
    lab.work(0.5)
    event = lab.event()
    other = threading.Thread(target=lab.synchronize)
    other.start()
    longest, asked, until = 0.0, 0, time.perf_counter() + 0.3
    while time.perf_counter() < until:
        began = time.perf_counter()
        lab.passed(event)
        longest, asked = max(longest, time.perf_counter() - began), asked + 1
        time.sleep(0.001)
    other.join()
    text = f"the longest of {asked} answers took {longest * 1e3:.2f} ms (due < 100)"
    return judged("asked while another thread waits", longest < 0.1, text)


def errors(lab: Lab) -> Outcome:
    totals, device = lab.recorder.totals, lab.recorder.live.device
    facts = device.facts() if device is not None else {"clock": "host"}
    good = totals.errors == totals.lost == 0 and facts["clock"] == "device"
    return judged("errors in the hooks", good, f"{totals.errors} errors, {totals.lost} lost; {facts}")
