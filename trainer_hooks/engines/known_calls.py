"""Calls of engines that are known by name: loaders, evaluations, checkpoints, hidden waits, catchers of exceptions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import Any, Final

from laggard.rankfile.fact_names import HIDDEN_WAITS
from laggard.trainer_hooks.record.ending import FACTS, note_caught
from laggard.trainer_hooks.record.events import CHECKPOINT, EVALUATION, INPUT, LOGGING
from laggard.trainer_hooks.record.recorder import in_phase
from laggard.trainer_hooks.session import Session
from laggard.trainer_hooks.wrapping import Wrap, after_import, wrap_once

# Records what frameworks do beside training, by the calls that say so: evaluation, checkpoints, logging.
#
# One line a call. A module that the script does not import is not imported here, and a call that this version of a
# library does not have is left out.

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


Call = tuple[str, str, Wrap]
"""A module, its function or method, and what is put in the place of that."""


def phased_calls(session: Session) -> Iterator[Call]:
    """What records these calls on the training thread."""
    steps = session.steps

    def on_training_thread(phase: int) -> Callable[..., tuple[int] | None]:
        return lambda *_, **__: (phase,) if get_ident() == steps.thread else None

    for module, name, phase in PHASED_CALLS:
        yield module, name, functools.partial(in_phase, session.recorder, on_training_thread(phase))


NEXT_METHODS: Final[tuple[tuple[str, str], ...]] = (
    # module, class: next() of its instances gives a batch
    ("nvidia.dali.plugin.pytorch", "DALIGenericIterator"),
    ("nvidia.dali.plugin.pytorch", "DALIClassificationIterator"),
    ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator"),
    ("tensorflow.python.data.ops.dataset_ops", "NumpyIterator"),
    ("grain._src.python.data_loader", "DataLoaderIterator"),
)

ITERATORS: Final[tuple[tuple[str, str], ...]] = (
    # module, method: what it returns is iterated over
    ("datasets.iterable_dataset", "IterableDataset.__iter__"),
    ("datasets.iterable_dataset", "IterableDataset.iter"),
    ("datasets.arrow_dataset", "Dataset.__iter__"),
    ("datasets.arrow_dataset", "Dataset.iter"),
    ("webdataset.pipeline", "DataPipeline.__iter__"),
    ("streaming.base.dataset", "StreamingDataset.__iter__"),
    ("ray.data.iterator", "DataIterator.iter_batches"),
    ("ray.data.iterator", "DataIterator.iter_torch_batches"),
)


def loader_calls(session: Session) -> Iterator[Call]:
    """What records these loaders' waits on the training thread as input."""
    for module, name in NEXT_METHODS:
        yield module, f"{name}.__next__", functools.partial(_waited_for, session)
    for module, name in ITERATORS:
        yield module, name, functools.partial(_recorded_iterator, session)


def _recorded_iterator(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which returns an iterable, so that each step of going over it is recorded."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return _Recorded(session, found) if get_ident() == session.steps.thread else found

    return recorded


class _Recorded:
    """An iterable whose steps are recorded as input. All else is that of the iterable itself."""

    def __init__(self, session: Session, iterable: Any) -> None:
        self._session = session
        self._iterable = iterable
        self._following: Callable[[], Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._following is None:
            self._begin()
            return self
        return _Recorded(self._session, iter(self._iterable))

    def __next__(self) -> Any:
        return (self._following or self._begin())()

    def _begin(self) -> Callable[[], Any]:
        self._following = following = _waited_for(self._session, iter(self._iterable).__next__)
        return following

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)


def _waited_for(session: Session, following: Callable[..., Any]) -> Callable[..., Any]:
    """`following`, for which the training thread waits."""

    def entered(*_: Any) -> tuple[int] | None:
        if get_ident() != session.steps.thread:
            return None
        return (EVALUATION if session.forward.evaluates() else INPUT,)

    return in_phase(session.recorder, entered, following)


# Tells of libraries whose kernels exchange data with other ranks by themselves: the wait for a slow rank is inside of a
# kernel, where no hook sees it, and passes for the rank's own work on its GPU.
#
# One line a call that says that the library is in use: many of them are imported wherever they are installed.

HIDING_CALLS: Final[tuple[tuple[str, str, str], ...]] = (
    # module, function or method, the library's name
    ("deep_ep", "Buffer.__init__", "DeepEP"),
    ("deep_ep", "ElasticBuffer.__init__", "DeepEP"),
    ("deep_ep", "HybridEPBuffer.__init__", "DeepEP"),
    ("uccl.ep", "Buffer.__init__", "UCCL"),
    ("pplx_kernels.all_to_all", "AllToAll.__init__", "pplx-kernels"),
    ("nvshmem.core", "init", "NVSHMEM"),
    ("mscclpp", "CommGroup.__init__", "MSCCL++"),
    ("mori.ops", "EpDispatchCombineOp.__init__", "mori"),
    ("torchcomms", "new_comm", "torchcomms"),
    ("nixl_ep", "Buffer.__init__", "NIXL-EP"),
    ("transformer_engine.pytorch.module.base", "initialize_ub", "Transformer Engine's user buffers"),
    ("torch.distributed._symmetric_memory", "rendezvous", "torch's symmetric memory"),
    ("torch.distributed._symmetric_memory", "get_symm_mem_workspace", "torch's symmetric memory"),
)


def _told(library: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        FACTS.set(HIDDEN_WAITS, sorted({*(FACTS.get(HIDDEN_WAITS) or ()), library}))
        return original(*args, **kwargs)

    return told


CATCHERS: Final[tuple[tuple[str, str], ...]] = (
    # module, function or method: one of its arguments is the exception that was caught
    ("ray.train.v2._internal.execution.worker_group.thread_runner", "construct_user_exception_with_traceback"),
    ("ray.air._internal.util", "RunnerThread._propagate_exception"),  # Ray Train before its second version
)


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        error = next((each for each in (*args, *kwargs.values()) if isinstance(each, BaseException)), None)
        if error is not None:
            note_caught(error)
        return original(*args, **kwargs)

    return noted


def hook_known_calls(session: Session) -> None:
    """Hooks all these calls, wherever their modules are imported."""
    hook_calls(phased_calls(session))
    hook_calls(loader_calls(session))
    hook_calls((module, name, functools.partial(_told, library)) for module, name, library in HIDING_CALLS)
    hook_calls((module, name, _noted) for module, name in CATCHERS)


def hook_calls(calls: Iterable[Call]) -> None:
    for module, name, wrap in calls:
        after_import(module, functools.partial(wrap_once, name=name, wrap=wrap))
