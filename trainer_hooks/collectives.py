"""Wraps collective calls so that each is timed and the one in flight can be read from outside. This is the hot path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from laggard.rankfile.layout import RECORDS_PER_BLOCK, WORD_CURRENT, WORD_ISSUED
from laggard.trainer_hooks.groups import Groups
from laggard.trainer_hooks.recorder import LaneLog, Recorder, clock


class Call(NamedTuple):
    """Where a collective's arguments stand: the group, and what is as large as nccl-tests counts the operation
    (the larger of its two buffers)."""

    op: str
    group: int  # position of the argument `group`
    sized: int  # position of the tensor (or list of tensors) that has the operation's size
    sized_name: str  # its name; empty: the operation moves no data


DEEPSPEED_CALLS: dict[str, Call] = {
    "all_reduce": Call("all_reduce", 2, 0, "tensor"),
    "inference_all_reduce": Call("all_reduce", 2, 0, "tensor"),
    "all_reduce_coalesced": Call("all_reduce", 2, 0, "tensors"),
    "reduce": Call("reduce", 3, 0, "tensor"),
    "reduce_scatter": Call("reduce_scatter", 3, 1, "input_list"),
    "reduce_scatter_tensor": Call("reduce_scatter", 3, 1, "input_tensor"),
    "broadcast": Call("broadcast", 2, 0, "tensor"),
    "all_gather": Call("all_gather", 2, 0, "tensor_list"),
    "all_gather_into_tensor": Call("all_gather", 2, 0, "output_tensor"),
    "all_gather_base": Call("all_gather", 2, 0, "output_tensor"),
    "all_gather_coalesced": Call("all_gather", 2, 0, "output_tensors"),
    "all_to_all_single": Call("all_to_all", 4, 0, "output"),
    "all_to_all": Call("all_to_all", 2, 0, "output_tensor_list"),
    "gather": Call("gather", 3, 0, "tensor"),
    "scatter": Call("scatter", 3, 0, "tensor"),
    "barrier": Call("barrier", 0, 0, ""),
    "monitored_barrier": Call("barrier", 0, 0, ""),
}


_FULL = RECORDS_PER_BLOCK - 1  # word & _FULL is 0 once in as many collectives of a lane as a block holds


class Handle:
    """An asynchronous collective's work handle, with the time spent in its wait() measured; else as it was."""

    __slots__ = ("_finish", "_word", "_work")

    def __init__(self, work: Any, word: int, finish: Callable[[Any, int, Any, Any], Any]) -> None:
        self._work = work
        self._word = word
        self._finish = finish

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        return self._finish(self._work, self._word, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def instrument(original: Callable[..., Any], call: Call, recorder: Recorder, groups: Groups) -> Callable[..., Any]:
    """`original` with its calls recorded. What it is given and returns is unchanged, but for handles (see Handle).

    One long function on purpose: a call inside it costs a tenth of what it may cost in all.
    """
    op, group_at, sized_at, sized_name = call
    waits, launched, totals = recorder.waits.append, recorder.open, recorder.totals
    logs: dict[Any, tuple[Callable[[], int], Callable[[tuple[int, ...]], None], LaneLog]] = {}
    finish = _waiter(recorder)

    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            group = kwargs["group"] if "group" in kwargs else args[group_at] if len(args) > group_at else None
            try:
                take, put, log = logs[group]
            except KeyError:
                log = groups.log(recorder, op, group)
                take, put, log = logs[group] = log.take, log.put, log
            word = take()
            words = recorder.words
            issued = clock()
            words[WORD_CURRENT] = word
            words[WORD_ISSUED] = issued
        except Exception:
            totals.errors += 1
            return original(*args, **kwargs)
        device = recorder.device
        if device is not None:
            tensors = args[sized_at] if sized_name and len(args) > sized_at else kwargs.get(sized_name)
            return device.call(original, args, kwargs, log, word, issued, tensors, group)
        result = original(*args, **kwargs)
        try:
            now = clock()
            words[WORD_ISSUED] = 0
            try:
                size = (args[sized_at] if args else kwargs[sized_name]).nbytes
            except Exception:
                size = _size(args, kwargs, sized_at, sized_name)
            if result is None or not hasattr(result, "wait"):
                waited = now - issued
                put((word, issued, now, waited, size))
                waits(waited)
                if not word & _FULL:
                    recorder.hand_on()
            else:
                launched[word] = (log, issued, size, recorder.step)
                result = Handle(result, word, finish)
        except Exception:
            totals.errors += 1
        return result

    return recorded


def _size(args: Any, kwargs: Any, at: int, name: str) -> int:
    """The size in bytes of an operation on a list of tensors, or of one called in an unusual way."""
    if not name:
        return 0
    sized = args[at] if len(args) > at else kwargs[name]
    return sum(part.nbytes for part in sized) if isinstance(sized, (list, tuple)) else sized.nbytes


def _waiter(recorder: Recorder) -> Callable[[Any, int, Any, Any], Any]:
    launched = recorder.open

    def finish(work: Any, word: int, args: Any, kwargs: Any) -> Any:
        if word not in launched:  # waited for a second time, or given up
            return work.wait(*args, **kwargs)
        log, issued, size, _ = launched.pop(word)
        words = recorder.words
        began = clock()
        words[WORD_CURRENT] = word
        words[WORD_ISSUED] = began
        result = work.wait(*args, **kwargs)
        try:
            now = clock()
            words[WORD_ISSUED] = 0
            log.put((word, issued, now, now - began, size))
            recorder.waits.append(now - began)
            if not word & _FULL:
                recorder.hand_on()
        except Exception:
            recorder.totals.errors += 1
        return result

    return finish
