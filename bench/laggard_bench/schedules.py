"""Pipeline schedules: in which order a stage does its forwards and backwards. Pure.

GPipe (Huang et al., 2019), 1F1B and interleaved 1F1B (Narayanan et al., 2021, section 2.2), and ZB-H1 of zero bubble
(Qi et al., 2023), which does the gradient of the weights (`W`) later than that of the inputs (`B`).
"""

from typing import NamedTuple

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")


class Task(NamedTuple):
    """`what`: F, B (all of the backward, or that of the inputs) or W. `chunk`: of the stage's parts of the model."""

    what: str
    micro: int
    chunk: int = 0


def schedule(name: str, stage: int, stages: int, micros: int) -> list[Task]:
    if name == "gpipe":
        return [Task("F", m) for m in range(micros)] + [Task("B", m) for m in range(micros)]
    if name == "interleaved":
        return _interleaved(stage, stages, micros)
    tasks = _one_forward_one_backward(stage, stages, micros)
    return _zero_bubble(tasks, stage) if name == "zero_bubble" else tasks


def chunks(name: str) -> int:
    return 2 if name == "interleaved" else 1


def _one_forward_one_backward(stage: int, stages: int, micros: int) -> list[Task]:
    warm = min(stages - 1 - stage, micros)
    tasks = [Task("F", m) for m in range(warm)]
    for m in range(micros - warm):
        tasks += [Task("F", warm + m), Task("B", m)]
    return tasks + [Task("B", m) for m in range(micros - warm, micros)]


def _interleaved(stage: int, stages: int, micros: int) -> list[Task]:
    """Needs a number of micro-batches that the stages divide."""
    total = 2 * micros

    def nth(number: int, forward: bool) -> Task:
        within, turn = number % (2 * stages), number // (2 * stages)
        chunk = within // stages
        return Task("F" if forward else "B", turn * stages + within % stages, chunk if forward else 1 - chunk)

    warm = min((stages - stage - 1) * 2 + stages, total)
    tasks = [nth(i, True) for i in range(warm)]
    for i in range(total - warm):
        tasks += [nth(warm + i, True), nth(i, False)]
    return tasks + [nth(i, False) for i in range(total - warm, total)]


def _zero_bubble(tasks: list[Task], stage: int) -> list[Task]:
    """Puts off as many Ws as the stage has turns to spare, and does them where it would wait for a backward."""
    found, open_ws = [], []
    forwards = sum(task.what == "F" for task in tasks)
    for task in tasks:
        found.append(task)
        forwards -= task.what == "F"
        if task.what == "B":
            open_ws.append(Task("W", task.micro))
            while open_ws and (len(open_ws) > stage or not forwards):
                found.append(open_ws.pop(0))
    return found + open_ws
