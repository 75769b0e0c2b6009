"""Hooks a DeepSpeed engine: forward, backward, step. Its collectives go through torch.distributed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from laggard.deepspeed_config import told_settings
from laggard.environment import ENV_REDUCE_SCATTER
from laggard.rankfile.fact_names import DEEPSPEED
from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.engines.engine_methods import end_steps, record_phase
from laggard.trainer_hooks.pytorch.input_size import elements
from laggard.trainer_hooks.record.facts import FACTS
from laggard.trainer_hooks.record.recorder import BACKWARD, EVALUATION, FORWARD, OPTIMIZER, Recorder
from laggard.trainer_hooks.session import Session
from laggard.trainer_hooks.wrapping import suppress_errors

_HOOKED = "_laggard_hooked"


def hook(engine: Any, session: Session) -> None:
    """Hooks `engine`; a second call changes nothing. From now on the engines' steps are the steps of the process, and
    torch's optimizers end none."""
    if getattr(engine, _HOOKED, False):
        return
    set_roles(session.groups)
    session.placement.saw(engine.module.parameters())
    session.native.record_new()
    if session.digests is not None:
        session.digests.add_module(engine.module)
    session.steps.ends_steps = False
    number = session.engines.add_engine()
    if hasattr(engine, "_INSTRUCTION_MAP"):
        from laggard.trainer_hooks.engines import deepspeed_pipeline

        deepspeed_pipeline.hook(engine, session, number)
    else:
        _hook_calls(engine, session, number)
    setattr(engine, _HOOKED, True)
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
    engine.forward = _forward_in_training(engine, recorder, engine.forward)
    engine.backward = record_phase(recorder, BACKWARD, engine.backward)
    engine.step = end_steps(engine, session, number, record_phase(recorder, OPTIMIZER, engine.step))


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


def _forward_in_training(engine: Any, recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, recorded as the forward phase while the engine trains, else as evaluation."""

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if engine.training:
            recorder.enter(FORWARD, elements(args, kwargs))
        else:
            recorder.enter(EVALUATION)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()

    return forward
