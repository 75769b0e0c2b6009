"""The trainings, and the lines of the user's code that their faults have."""

from __future__ import annotations

import ast
import signal
from pathlib import Path
from typing import NamedTuple

USER = Path(__file__).resolve().parents[1] / "stack_faults"
SLOW, HUNG, HEALTHY = "slow", "hung", "healthy"


class Case(NamedTuple):
    """`kind`: slow, hung or healthy. `fault`: as the user's code calls it. `engine`: as train.py's argument. `kill`:
    the signal that ends a job that hangs."""

    kind: str
    fault: str
    engine: str
    victim: int = 1
    ranks: int = 3
    workers: int = 0
    kill: signal.Signals = signal.SIGTERM

    @property
    def name(self) -> str:
        workers = f"{self.workers}-" if self.workers and self.fault == "getitem" else ""
        return f"{self.fault}-{workers}{self.engine.replace(':', '')}"


CASES = (
    Case(SLOW, "transform", "ddp", victim=2),
    Case(SLOW, "getitem", "fsdp2", victim=1),
    Case(SLOW, "getitem", "ddp", victim=1, workers=2),
    Case(SLOW, "regex", "zero:1", victim=2),
    Case(SLOW, "gc", "hugging_face", victim=1, ranks=2),
    Case(SLOW, "log", "fsdp2", victim=2),
    Case(SLOW, "http", "hugging_face", victim=1, ranks=2),
    Case(SLOW, "optimizer", "zero:1", victim=1),
    Case(SLOW, "backward", "ddp", victim=2),
    Case(HEALTHY, "none", "ddp"),
    Case(HUNG, "log_lock", "ddp", victim=1),
    Case(HUNG, "save", "fsdp2", victim=2, kill=signal.SIGKILL),
    Case(HUNG, "gil", "ddp", victim=1),
    Case(HUNG, "queue", "hugging_face", victim=1, ranks=2),
    Case(HUNG, "baton", "zero:1", victim=1),
    Case(HUNG, "http_never", "zero:3", victim=1, ranks=2, kill=signal.SIGKILL),
    Case(HUNG, "subprocess", "fsdp2", victim=1),
    Case(HUNG, "worker", "ddp", victim=2, workers=2),
    Case(HEALTHY, "logs_much", "hugging_face", ranks=2),
    Case(HEALTHY, "saves_much", "fsdp2"),
    Case(SLOW, "transform", "zero:3", victim=1, ranks=2),
    Case(SLOW, "regex", "ddp", victim=1),
    Case(SLOW, "gc", "ddp", victim=2),
    Case(SLOW, "http", "zero:3", victim=1, ranks=2),
    Case(SLOW, "backward", "zero:1", victim=1),
    Case(HUNG, "save", "hugging_face", victim=1, ranks=2),
    Case(HUNG, "gil", "zero:1", victim=2, kill=signal.SIGKILL),
    Case(HUNG, "process_queue", "ddp", victim=2),
    Case(HEALTHY, "none", "zero:1"),
    Case(HEALTHY, "none", "zero:3", ranks=2),
    Case(HEALTHY, "saves_much", "ddp"),
    Case(SLOW, "log", "ddp", victim=1),
    Case(SLOW, "optimizer", "ddp", victim=2),
    Case(SLOW, "getitem", "hugging_face", victim=1, ranks=2, workers=2),
    Case(HUNG, "log_lock", "zero:3", victim=1, ranks=2),
    Case(HUNG, "baton", "ddp", victim=2, kill=signal.SIGKILL),
    Case(HUNG, "http_never", "ddp", victim=2),
    Case(HUNG, "subprocess", "zero:1", victim=2, kill=signal.SIGKILL),
    Case(HUNG, "worker", "hugging_face", victim=1, ranks=2, workers=2, kill=signal.SIGKILL),
)
BY_NAME = {case.name: case for case in CASES}


class Place(NamedTuple):
    """A line of the user's code, as laggard writes a frame: `function (file:line)`."""

    function: str
    file: str
    line: int

    def is_in(self, text: str) -> bool:
        return self.function in text and f"{self.file}:{self.line})" in text.replace(",", ")") + ")"

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


def places(fault: str, mark: str = "fault") -> list[Place]:
    """The lines marked with this fault; `through`: those that wait for a process in which the fault is."""
    found = []
    for path in sorted(USER.rglob("*.py")):
        text = path.read_text()
        for number, line in enumerate(text.splitlines(), 1):
            names = line.partition(f"# {mark}: ")[2].split(", ")
            if fault in names:
                found.append(Place(_function(text, number), path.name, number))
    return found


def _function(text: str, line: int) -> str:
    """The name of the innermost function around this line."""
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name
