"""Records what frameworks do beside training, by the calls that say so: evaluation, checkpoints, logging.

One line a call. A module that the script does not import is not imported here, and a call that this version of a
library does not have is left out.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import Any, Final

from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.record.recorder import CHECKPOINT, EVALUATION, LOGGING
from laggard.trainer_hooks.session import Session

HOOKED: Final = "_laggard_hooked"

_LIGHTNINGS: Final = ("lightning.pytorch", "pytorch_lightning")  # one library under two names
_LIGHTNING_CALLS: Final = (
    ("loops.evaluation_loop", "_EvaluationLoop.run", EVALUATION),
    ("trainer.trainer", "Trainer.save_checkpoint", CHECKPOINT),
    ("callbacks.model_checkpoint", "ModelCheckpoint._save_checkpoint", CHECKPOINT),
    ("trainer.connectors.logger_connector.logger_connector", "_LoggerConnector.log_metrics", LOGGING),
)

PHASED_CALLS: Final[tuple[tuple[str, str, int], ...]] = (
    # module, function or method, phase
    ("torch.serialization", "save", CHECKPOINT),
    ("torch.distributed.checkpoint.state_dict_saver", "save", CHECKPOINT),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save", CHECKPOINT),
    ("torch.distributed.checkpoint.state_dict_saver", "save_state_dict", CHECKPOINT),
    ("safetensors.torch", "save_file", CHECKPOINT),
    ("safetensors.torch", "save_model", CHECKPOINT),
    ("deepspeed.runtime.engine", "DeepSpeedEngine.save_checkpoint", CHECKPOINT),
    ("deepspeed.runtime.engine", "DeepSpeedEngine.save_16bit_model", CHECKPOINT),
    ("deepspeed.runtime.pipe.engine", "PipelineEngine.eval_batch", EVALUATION),
    ("transformers.trainer", "Trainer.evaluate", EVALUATION),
    ("transformers.trainer", "Trainer.predict", EVALUATION),
    ("transformers.trainer", "Trainer._save_checkpoint", CHECKPOINT),
    ("transformers.trainer", "Trainer.save_model", CHECKPOINT),
    ("transformers.trainer", "Trainer.log", LOGGING),
    ("accelerate.accelerator", "Accelerator.save_state", CHECKPOINT),
    ("accelerate.accelerator", "Accelerator.save_model", CHECKPOINT),
    ("accelerate.accelerator", "Accelerator.save", CHECKPOINT),
    ("accelerate.accelerator", "Accelerator.log", LOGGING),
    ("lightning.fabric.fabric", "Fabric.save", CHECKPOINT),
    ("lightning.fabric.fabric", "Fabric.log_dict", LOGGING),
    *((f"{package}.{module}", name, phase) for package in _LIGHTNINGS for module, name, phase in _LIGHTNING_CALLS),
    ("torch.utils.tensorboard.writer", "SummaryWriter.add_scalar", LOGGING),
    ("torch.utils.tensorboard.writer", "SummaryWriter.add_scalars", LOGGING),
    ("torch.utils.tensorboard.writer", "SummaryWriter.add_histogram", LOGGING),
    ("torch.utils.tensorboard.writer", "SummaryWriter.flush", LOGGING),
    ("tensorboardX.writer", "SummaryWriter.add_scalar", LOGGING),
    ("wandb.sdk.wandb_run", "Run.log", LOGGING),
    ("mlflow.tracking.fluent", "log_metric", LOGGING),
    ("mlflow.tracking.fluent", "log_metrics", LOGGING),
    ("mlflow.tracking.fluent", "log_artifact", LOGGING),
    ("megatron.training.checkpointing", "save_checkpoint", CHECKPOINT),
    ("megatron.training.training", "evaluate", EVALUATION),
    ("megatron.training.training", "training_log", LOGGING),
    ("torchtitan.components.checkpoint", "CheckpointManager.save", CHECKPOINT),
    ("torchtitan.components.metrics", "MetricsProcessor.log", LOGGING),
    ("torchtitan.components.validate", "Validator.validate", EVALUATION),
)


def hook_phased_calls(session: Session) -> None:
    """Records these calls on the training thread, wherever their modules are imported."""
    for module, name, phase in PHASED_CALLS:
        after_import(module, functools.partial(_hook, session, name, phase))


def _hook(session: Session, name: str, phase: int, module: ModuleType) -> None:
    owner: Any = module
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    original = vars(owner).get(last) if owner is not None else None
    if not callable(original) or hasattr(original, HOOKED):
        return  # another version of the library, or a part of a reloaded one that it has kept
    recorded = _recorded(session, phase, original)
    setattr(owner, last, recorded)
    if owner is module:
        _replace_where_it_was_taken(module, last, original, recorded)


def _replace_where_it_was_taken(module: ModuleType, name: str, original: Any, recorded: Any) -> None:
    """Packages take a function from the module that defines it: torch.save is torch.serialization.save."""
    parts = module.__name__.split(".")
    for count in range(1, len(parts)):
        package = sys.modules.get(".".join(parts[:count]))
        if package is not None and vars(package).get(name) is original:
            setattr(package, name, recorded)


def _recorded(session: Session, phase: int, original: Callable[..., Any]) -> Callable[..., Any]:
    recorder, steps = session.recorder, session.steps

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if get_ident() != steps.thread:
            return original(*args, **kwargs)
        recorder.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()

    setattr(recorded, HOOKED, True)
    return recorded
