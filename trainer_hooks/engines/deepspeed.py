"""Hooks a DeepSpeed engine: forward, backward, step. Its collectives go through torch.distributed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

from laggard.deepspeed_config import told_settings
from laggard.kit.environment import ENV_REDUCE_SCATTER
from laggard.rankfile.fact_names import DEEPSPEED
from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.pytorch.forward import elements
from laggard.trainer_hooks.record.ending import FACTS
from laggard.trainer_hooks.record.events import BACKWARD, EVALUATION, FORWARD, INPUT, OPTIMIZER
from laggard.trainer_hooks.record.recorder import in_phase
from laggard.trainer_hooks.session import Session
from laggard.trainer_hooks.wrapping import HOOKED, suppress_errors


def end_steps(engine: Any, session: Session, number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, the engine's method that is called once for each micro-batch or batch: it ends a step where it
    increases global_steps. `number`: the engine's, from EngineSteps.add_engine()."""

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = original(*args, **kwargs)
        if engine.global_steps != before:
            session.engines.updated(number, engine.global_steps)
        return result

    return counted


def hook(engine: Any, session: Session) -> None:
    """Hooks `engine`; a second call changes nothing. From now on the engines' steps are the steps of the process, and
    torch's optimizers end none."""
    if getattr(engine, HOOKED, False):
        return
    set_roles(session.groups)
    session.placement.saw(engine.module.parameters())
    session.native.record_new()
    if session.digests is not None:
        session.digests.add_module(engine.module)
    session.steps.ends_steps = False
    number = session.engines.add_engine()
    if hasattr(engine, "_INSTRUCTION_MAP"):
        hook_deepspeed_pipeline(engine, session, number)
    else:
        _hook_calls(engine, session, number)
    setattr(engine, HOOKED, True)
    suppress_errors(_tell_settings, engine)
    if os.environ.get(ENV_REDUCE_SCATTER, "") not in ("", "0"):
        from laggard.trainer_hooks.engines import deepspeed_reduce_scatter

        deepspeed_reduce_scatter.replace(engine, number)


def _tell_settings(engine: Any) -> None:
    """Notes the configuration's settings, as DeepSpeed has read them: with what `auto` became."""
    tree = engine._config._param_dict
    if isinstance(tree, dict):
        FACTS.set(DEEPSPEED, told_settings(tree))


def _hook_calls(engine: Any, session: Session, number: int) -> None:
    recorder = session.recorder

    def forward(*args: Any, **kwargs: Any) -> tuple[int, ...]:
        return (FORWARD, elements(args, kwargs)) if engine.training else (EVALUATION,)

    engine.forward = in_phase(recorder, forward, engine.forward)
    engine.backward = in_phase(recorder, lambda *_, **__: (BACKWARD,), engine.backward)
    step = in_phase(recorder, lambda *_, **__: (OPTIMIZER,), engine.step)
    engine.step = end_steps(engine, session, number, step)


def set_roles(groups: ProcessGroups) -> None:
    """Sets the roles of this rank's data-, tensor-, expert- and pipeline-parallel groups, as DeepSpeed knows them."""
    import torch.distributed as dist
    from deepspeed.utils import groups as known

    getters: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("pp", lambda: known.mpu.get_pipe_parallel_group()),
        ("tp", lambda: known._get_model_parallel_group() if known.mpu is not None else None),
        ("dp", lambda: known._get_data_parallel_group()),
        ("ep", lambda: next(iter(known._get_expert_parallel_group_dict().values()), None)),
        ("dp", lambda: next(iter(known._get_expert_data_parallel_group_dict().values()), None)),
    )
    for role, get in getters:
        try:
            group = get()
        except Exception:  # this version of DeepSpeed has another name for it: the group's role stays unknown
            continue
        if group is not None:
            groups.set_role(role, group)
    groups.set_role_of_members("world", tuple(range(dist.get_world_size())))


_PHASES: Final = {
    "LoadMicroBatch": INPUT,
    "ForwardPass": FORWARD,
    "BackwardPass": BACKWARD,
    "ReduceGrads": BACKWARD,
    "ReduceTiedGrads": BACKWARD,
    "OptimizerStep": OPTIMIZER,
}
"""The phase of an instruction, by its class. Sending and receiving is waiting and belongs to no phase."""


def hook_deepspeed_pipeline(engine: Any, session: Session, number: int) -> None:
    """Hooks the engine. The groups' roles are set before: a group of two neighbours is a pipeline. `number`: the
    engine's, from EngineSteps.add_engine()."""
    recorder = session.recorder
    recorder.events.expect_engine_gaps()  # the engine reads its input itself, and sends and receives

    def in_training(phase: int) -> Callable[..., tuple[int] | None]:
        """An evaluation runs the same instructions."""
        return lambda *_, **__: (phase,) if engine.training else None

    engine._INSTRUCTION_MAP = {
        instruction: in_phase(recorder, in_training(_PHASES[instruction.__name__]), execute)
        if instruction.__name__ in _PHASES
        else execute
        for instruction, execute in engine._INSTRUCTION_MAP.items()
    }
    engine.train_batch = end_steps(engine, session, number, engine.train_batch)
