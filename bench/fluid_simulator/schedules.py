"""Pipeline schedules: in which order a stage does its tasks. Pure.

GPipe (Huang et al., 2019), 1F1B and interleaved 1F1B (Narayanan et al., 2021, section 2.2), and zero bubble, where the
gradient of the weights (`W`) comes later than that of the inputs (`B`; Qi et al., 2023).
"""

from typing import NamedTuple


class Task(NamedTuple):
    """`what`: F, B or W. `chunk`: of the stage's parts of the model."""

    what: str
    micro: int
    chunk: int = 0


def schedule(name: str, stages: int, stage: int, micros: int, chunks: int) -> list[Task]:
    """The stage's tasks of a step. `name`: gpipe, 1f1b, interleaved or zb."""
    if name == "gpipe":
        return _gpipe(micros)
    if name == "interleaved":
        return _interleaved(stages, stage, micros, chunks)
    return _one_forward_one_backward(stages, stage, micros, name == "zb")


def _gpipe(micros: int) -> list[Task]:
    return [Task("F", micro) for micro in range(micros)] + [Task("B", micro) for micro in reversed(range(micros))]


def _one_forward_one_backward(stages: int, stage: int, micros: int, split: bool) -> list[Task]:
    """`split`: the weights' gradients are put off, by as many micro-batches as the stage has turns to spare."""
    warm = min(micros, stages - 1 - stage)
    found = [Task("F", micro) for micro in range(warm)]
    weights = 0
    for micro in range(micros):
        if warm + micro < micros:
            found.append(Task("F", warm + micro))
        found.append(Task("B", micro))
        if split and micro + 1 - weights > stage:
            found.append(Task("W", weights))
            weights += 1
    return found + [Task("W", micro) for micro in range(weights, micros) if split]


def _interleaved(stages: int, stage: int, micros: int, chunks: int) -> list[Task]:
    """Needs a number of micro-batches that the stages divide."""
    total = micros * chunks

    def nth(number: int, what: str) -> Task:
        turn, within = divmod(number, stages * chunks)
        chunk = within // stages
        return Task(what, turn * stages + within % stages, chunk if what == "F" else chunks - 1 - chunk)

    warm = min(total, (stages - 1 - stage) * 2 + (chunks - 1) * stages)
    found = [nth(number, "F") for number in range(warm)]
    for number in range(warm, total):
        found += [nth(number, "F"), nth(number - warm, "B")]
    return found + [nth(number, "B") for number in range(total - warm, total)]
