"""The hooks in a DeepSpeed engine: forward, backward, step, and every collective that goes through deepspeed.comm.

Collectives are caught at `deepspeed.comm.comm.cdb`, the backend that all functions of deepspeed.comm call (measured
with 0.19.8: what passes there is, for ZeRO 0 to 3, one for one what torch's Flight Recorder sees). What bypasses it
(DeepCompile's C++ calls, user code on torch.distributed) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laggard.trainer_hooks.collectives import DEEPSPEED_CALLS, instrument
from laggard.trainer_hooks.groups import Groups
from laggard.trainer_hooks.recorder import BACKWARD, FORWARD, OPTIMIZER, Recorder

_HOOKED = "_laggard_hooked"


def hook(engine: Any, recorder: Recorder, groups: Groups) -> None:
    """Puts the hooks into `engine` and into the process's communication backend; a second time changes nothing."""
    if getattr(engine, _HOOKED, False):
        return
    _learn_roles(groups)
    _hook_backend(recorder, groups)
    engine.forward = _in_training(engine, recorder, engine.forward)
    engine.backward = _phase(recorder, BACKWARD, engine.backward)
    engine.step = _step(engine, recorder, engine.step)
    setattr(engine, _HOOKED, True)


def _hook_backend(recorder: Recorder, groups: Groups) -> None:
    from deepspeed.comm import comm

    backend = comm.cdb
    if backend is None or getattr(backend, _HOOKED, False):
        return
    for name, call in DEEPSPEED_CALLS.items():
        original = getattr(backend, name, None)
        if original is not None:
            setattr(backend, name, instrument(original, call, recorder, groups))
    setattr(backend, _HOOKED, True)


def _learn_roles(groups: Groups) -> None:
    """Which members make a data-, tensor-, expert-parallel group of this rank, as DeepSpeed tells it."""
    import torch.distributed as dist
    from deepspeed.utils import groups as known

    asked: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("dp", lambda: known._get_data_parallel_group()),
        ("tp", lambda: known._get_model_parallel_group() if known.mpu is not None else None),
        ("ep", lambda: next(iter(known._get_expert_parallel_group_dict().values()), None)),
    )
    for role, ask in asked:
        try:
            group = ask()
        except Exception:  # this version of DeepSpeed names it otherwise: the group's role stays unknown
            continue
        if group is not None:
            groups.learn(role, groups.members(group))
    groups.learn("world", tuple(range(dist.get_world_size())))


def _phase(recorder: Recorder, phase: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, recorded as `phase`."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        recorder.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()

    return recorded


def _in_training(engine: Any, recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass; one in evaluation is none of a step's phases."""
    recorded = _phase(recorder, FORWARD, original)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return (recorded if engine.training else original)(*args, **kwargs)

    return forward


def _step(engine: Any, recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """engine.step(), called once a micro-batch: it is the optimizer's step where global_steps moves on."""
    recorded = _phase(recorder, OPTIMIZER, original)

    def step(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = recorded(*args, **kwargs)
        if engine.global_steps != before:
            recorder.end_step(engine.global_steps)
        return result

    return step
