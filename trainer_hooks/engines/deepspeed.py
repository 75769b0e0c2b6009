"""The hooks in a DeepSpeed engine: forward, backward, step. Its collectives pass through torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.engines.wrapping import counted, phase
from laggard.trainer_hooks.record.recorder import BACKWARD, FORWARD, OPTIMIZER, Recorder
from laggard.trainer_hooks.session import Session

_HOOKED = "_laggard_hooked"


def hook(engine: Any, session: Session) -> None:
    """Puts the hooks into `engine`; a second time changes nothing. From here on engines' steps are the process's."""
    if getattr(engine, _HOOKED, False):
        return
    learn_roles(session.groups)
    session.native.record_new()
    session.steps.counts = False
    number = session.engines.add_engine()
    if hasattr(engine, "_INSTRUCTION_MAP"):
        from laggard.trainer_hooks.engines import deepspeed_pipeline

        deepspeed_pipeline.hook(engine, session, number)
    else:
        _hook_calls(engine, session, number)
    setattr(engine, _HOOKED, True)


def _hook_calls(engine: Any, session: Session, number: int) -> None:
    recorder = session.recorder
    engine.forward = _in_training(engine, recorder, engine.forward)
    engine.backward = phase(recorder, BACKWARD, engine.backward)
    engine.step = counted(engine, session, number, phase(recorder, OPTIMIZER, engine.step))


def learn_roles(groups: ProcessGroups) -> None:
    """Which members make a data-, tensor-, expert-, pipeline-parallel group of this rank, as DeepSpeed tells it."""
    import torch.distributed as dist
    from deepspeed.utils import groups as known

    asked: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("pp", lambda: known.mpu.get_pipe_parallel_group()),
        ("tp", lambda: known._get_model_parallel_group() if known.mpu is not None else None),
        ("dp", lambda: known._get_data_parallel_group()),
        ("ep", lambda: next(iter(known._get_expert_parallel_group_dict().values()), None)),
        ("dp", lambda: next(iter(known._get_expert_data_parallel_group_dict().values()), None)),
    )
    for role, ask in asked:
        try:
            group = ask()
        except Exception:  # this version of DeepSpeed names it otherwise: the group's role stays unknown
            continue
        if group is not None:
            groups.set_role(role, group)
    groups.set_role_of_members("world", tuple(range(dist.get_world_size())))


def _in_training(engine: Any, recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass; one in evaluation is none of a step's phases."""
    recorded = phase(recorder, FORWARD, original)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return (recorded if engine.training else original)(*args, **kwargs)

    return forward
