"""What befalls one rank, put from outside into its model, its data and its loop."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from workload import disk, plan

SLOW_SECONDS = 0.04
WARM_UP_SECONDS = 0.2
WARM_UP_STEPS = 5

_ends = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"  # a job that was started anew goes through
_fired = False


def befall(module: torch.nn.Module) -> None:
    """Has the case happen in the forward pass of this module."""
    module.register_forward_pre_hook(_before_forward)


@torch.compiler.disable
def _before_forward(module: Any, arguments: Any) -> None:
    if not (module.training and torch.is_grad_enabled() and plan.is_victim()):
        return
    if plan.CASE == "forward" and plan.step >= plan.SLOW_FROM:
        _sleep(SLOW_SECONDS)
    elif plan.CASE == "warm_up" and plan.step < WARM_UP_STEPS:
        time.sleep(WARM_UP_SECONDS)
    elif plan.CASE in ("sigstop", "sigkill", "exception") and _is_due():
        _end()


def before_input() -> None:
    """The data of a step is about to be read."""
    disk.read()
    if plan.CASE == "input" and plan.is_victim() and plan.step >= plan.SLOW_FROM:
        _sleep(SLOW_SECONDS)


def after_step() -> None:
    """A step of the loop has ended."""
    if plan.CASE == "exit" and plan.is_victim() and _is_due():
        sys.exit(0)
    if plan.CASE == "collective" and plan.step >= plan.FAULT_STEP:
        _odd_collective()


def _odd_collective() -> None:
    """The mean of a metric, which one rank alone asks for, or all but one."""
    if plan.is_victim() == (plan.ODD_COLLECTIVE == "extra") and _is_due():
        dist.all_reduce(torch.ones(1))


def _sleep(seconds: float) -> None:
    global _fired
    if not _fired:
        _fired = True
        plan.note_fault()
    time.sleep(seconds)


def _is_due() -> bool:
    """Whether the fault that happens once happens now."""
    global _fired
    due = plan.step >= plan.FAULT_STEP and not _fired and _ends
    if due:
        _fired = True
        plan.note_fault()
    return due


def _end() -> None:
    if plan.CASE == "exception":
        raise FloatingPointError("as asked")
    os.kill(os.getpid(), signal.SIGSTOP if plan.CASE == "sigstop" else signal.SIGKILL)
