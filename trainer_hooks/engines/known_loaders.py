"""Records the waits for input of loaders that are not torch's DataLoader, by the calls that give a batch or a sample.

Within torch's DataLoader these belong to it: phases do not nest. What a worker process reads is not seen here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from threading import get_ident
from types import ModuleType
from typing import Any, Final

from laggard.trainer_hooks.engines.phased_calls import HOOKED
from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.record.recorder import EVALUATION, INPUT
from laggard.trainer_hooks.session import Session

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


def hook_known_loaders(session: Session) -> None:
    """Records these loaders' waits on the training thread as input, wherever their modules are imported."""
    for module, name in NEXT_METHODS:
        after_import(module, functools.partial(_hook, session, f"{name}.__next__", _recorded_next))
    for module, name in ITERATORS:
        after_import(module, functools.partial(_hook, session, name, _recorded_iterator))


Wrap = Callable[[Session, Callable[..., Any]], Callable[..., Any]]


def _hook(session: Session, name: str, wrap: Wrap, module: ModuleType) -> None:
    owner = getattr(module, name.partition(".")[0], None)
    method = name.rpartition(".")[2]
    original = vars(owner).get(method) if owner is not None else None
    if callable(original) and not hasattr(original, HOOKED):  # else another version of the library, or hooked already
        recorded = wrap(session, original)
        setattr(recorded, HOOKED, True)
        setattr(owner, method, recorded)


def _recorded_next(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def recorded(iterator: Any) -> Any:
        return _waited_for(session, functools.partial(original, iterator))

    return recorded


def _recorded_iterator(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which returns an iterable, so that each step of going over it is recorded."""

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return _Recorded(session, found) if get_ident() == session.steps.thread else found

    return recorded


class _Recorded:
    """An iterable whose steps are recorded as input. All else is that of the iterable itself."""

    def __init__(self, session: Session, iterable: Any) -> None:
        self._session = session
        self._iterable = iterable
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = iter(self._iterable)
            return self
        return _Recorded(self._session, iter(self._iterable))

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._iterable)
        return _waited_for(self._session, self._iterator.__next__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)


def _waited_for(session: Session, following: Callable[[], Any]) -> Any:
    """Does as following(), for which the training thread waits."""
    if get_ident() != session.steps.thread:
        return following()
    recorder = session.recorder
    recorder.enter(EVALUATION if session.forward.evaluates() else INPUT)
    try:
        return following()
    finally:
        recorder.leave()
