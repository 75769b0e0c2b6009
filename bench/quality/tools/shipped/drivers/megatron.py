"""Megatron-LM's sniff test: the function of its file that gathers a measure from all ranks and tells outliers, with its
own rule. It measures by CUDA; here each measure is given to it, as if the ranks had reported it: a process group and
tensors of the CPU stand in for those that it gathers with. It logs whom it marks; who is faster than the median is not
named here, although it marks them, too."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

OUTLIER = re.compile(r"OUTLIER rank (\d+).*\(([-+][\d.]+)%\)\s*$")
FILE = os.path.join("megatron", "training", "gpu_sniff_test.py")


class Said(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def shipped() -> ModuleType:
    """The file, found where its process finds modules."""
    path = next(path for path in (os.path.join(place, FILE) for place in sys.path) if os.path.exists(path))
    spec = importlib.util.spec_from_file_location("gpu_sniff_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """`measures`: of each its `phase`, None for a collective, and the `rates` of the ranks; `nodes`: of each rank."""
    module, said = shipped(), Said()
    module.logger.addHandler(said)
    module.torch = SimpleNamespace(tensor=on_cpu(torch.tensor), zeros=on_cpu(torch.zeros), float64=torch.float64)
    named: dict[int, str | None] = {}
    for measure in request["measures"]:
        said.lines.clear()
        module.dist = group_of([float("nan") if rate is None else rate for rate in measure["rates"]])
        module._gather_and_check(measure["phase"] or "collective", 0.0, request["nodes"])
        for rank in slow(said.lines):
            named.setdefault(rank, measure["phase"])
    return [culprit(rank, phase) for rank, phase in sorted(named.items())]


def slow(lines: list[str]) -> list[int]:
    """The ranks below the median that its lines mark."""
    found = [match.groups() for line in lines if (match := OUTLIER.search(line))]
    return [int(rank) for rank, percent in found if percent.startswith("-")]


def on_cpu(make: Any) -> Any:
    return lambda values, dtype=None, device=None: make(values, dtype=dtype)


def group_of(rates: list[float]) -> SimpleNamespace:
    """A process group in which every rank has reported its rate."""

    def all_gather(gathered: list[torch.Tensor], own: torch.Tensor) -> None:
        for tensor, rate in zip(gathered, rates, strict=True):
            tensor.fill_(rate)

    return SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: len(rates), all_gather=all_gather)


def culprit(rank: int, phase: str | None) -> dict[str, Any]:
    return {"kind": "slow_compute" if phase else "slow_link", "ranks": [rank], "phase": phase}
