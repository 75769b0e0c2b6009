"""Wraps collective calls so that each is timed and the one in flight can be read from outside. This is the hot path.

Whatever Python calls, torch.distributed's functions of any version, DeepSpeed, FSDP, object collectives, it ends in one
method call on a ProcessGroup and, where it must be waited for, in Work.wait(). Those are hooked, on the classes: no
name that a script has imported becomes another object, torch.compile sees the functions that it knows, nothing is
counted twice. What C++ calls by itself does not pass here: unseen.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from laggard.rankfile.layout import WORD_CURRENT, WORD_ISSUED
from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.record.events import LaneLog, Launch, word_of
from laggard.trainer_hooks.record.live_state import LiveState
from laggard.trainer_hooks.record.recorder import Recorder, clock


class Call(NamedTuple):
    """What a method of ProcessGroup does. `sized`: the position of the argument that is as large as nccl-tests counts
    the operation, the larger of its two buffers; -1: it moves no data. `peer`: the position of the other side's rank.
    `share`: that argument is one rank's share of it."""

    op: str
    sized: int
    peer: int = -1
    share: bool = False


CALLS: Final[dict[str, Call]] = {
    "allreduce": Call("all_reduce", 0),
    "allreduce_coalesced": Call("all_reduce", 0),
    "broadcast": Call("broadcast", 0),
    "reduce": Call("reduce", 0),
    "allgather": Call("all_gather", 0),
    "allgather_coalesced": Call("all_gather", 0),
    "_allgather_base": Call("all_gather", 0),
    "all_gather_single": Call("all_gather", 0),
    "allgather_into_tensor_coalesced": Call("all_gather", 0),
    "all_gather_single_coalesced": Call("all_gather", 0),
    "reduce_scatter": Call("reduce_scatter", 1),
    "_reduce_scatter_base": Call("reduce_scatter", 1),
    "reduce_scatter_single": Call("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": Call("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": Call("reduce_scatter", 1),
    "alltoall": Call("all_to_all", 0),
    "alltoall_base": Call("all_to_all", 0),
    "all_to_all_single": Call("all_to_all", 0),
    "gather": Call("gather", 1, share=True),
    "scatter": Call("scatter", 0, share=True),
    "barrier": Call("barrier", -1),
    "monitored_barrier": Call("barrier", -1),
    "send": Call("send", 0, peer=1),
    "recv": Call("recv", 0, peer=1),
    "recv_anysource": Call("recv", 0),
}

_OF_ONE: Final = ("all_reduce", "broadcast", "reduce")  # take a list, most often of one tensor
_NONE: Final = object()
_HOOKED: Final = "_laggard_hooked"


def hook(distributed: Any, recorder: Recorder, groups: ProcessGroups) -> None:
    """Hooks `torch.distributed`'s ProcessGroup and Work; a second time changes nothing."""
    if getattr(distributed.ProcessGroup, _HOOKED, False):
        return
    distributed.ProcessGroup._laggard_hooked = True
    hook_waits(distributed.Work, recorder)
    hook_calls(distributed.ProcessGroup, recorder, groups)


def hook_calls(group_class: Any, recorder: Recorder, groups: ProcessGroups) -> None:
    """Records the collectives of a class like ProcessGroup, as far as it has them."""
    for name, call in CALLS.items():
        original = getattr(group_class, name, None)
        if original is not None:
            setattr(group_class, name, instrument(original, call, recorder, groups, name))
    if hasattr(group_class, "_end_coalescing"):
        group_class._start_coalescing = _batch_start(group_class._start_coalescing, recorder)
        group_class._end_coalescing = _batch_end(group_class._end_coalescing, recorder)


def hook_waits(work_class: Any, recorder: Recorder) -> None:
    """Measures wait() of a class like Work, and of its subclasses that have their own."""
    for each in _family(work_class):
        if "wait" in vars(each):
            each.wait = _waiter(_direct(each.wait), recorder)


def _family(work_class: Any) -> Iterator[Any]:
    yield work_class
    for below in work_class.__subclasses__():
        if below.__module__.startswith(("torch._C", work_class.__module__)):
            yield from _family(below)


def instrument(
    original: Callable[..., Any], call: Call, recorder: Recorder, groups: ProcessGroups, name: str
) -> Callable[..., Any]:
    """The method `original` with its calls recorded. What it is given and returns is unchanged."""
    make = _sized if call.peer < 0 <= call.sized and not call.share else _other
    recorded = make(_direct(original), call, recorder, groups)
    functools.update_wrapper(recorded, original, assigned=("__doc__",), updated=())
    # pybind11 takes a Python method of a C++ class's subclass for an override, unless a frame of that name called it
    recorded.__code__ = recorded.__code__.replace(co_name=name)
    recorded.__name__ = name
    return recorded


def _direct(method: Callable[..., Any]) -> Callable[..., Any]:
    """What stands behind a method of pybind11's: called with the object as its first argument it does the same, without
    the tuple that is made for it on the way (0.03 to 0.08 us)."""
    if type(method).__name__ != "instancemethod":
        return method
    behind: Callable[..., Any] = method.__func__  # type: ignore[attr-defined]
    return behind


def _sized(original: Callable[..., Any], call: Call, recorder: Recorder, groups: ProcessGroups) -> Callable[..., Any]:
    """For the operations that matter. One long function on purpose: a call inside it costs a tenth of what it may
    cost in all; the two arguments by name cost less than any number of them."""
    logs: dict[Any, LaneLog] = groups.lane_logs(call.op)
    live, pending, totals = recorder.live, recorder.live.pending, recorder.totals
    first, sized_at, listed = call.sized == 0, call.sized, call.op in _OF_ONE
    new_log = functools.partial(groups.lane_log, recorder, call.op)

    def recorded(self: Any, one: Any = _NONE, two: Any = _NONE, three: Any = _NONE, *rest: Any, **named: Any) -> Any:
        try:
            try:
                log = logs[self]
            except KeyError:
                log = logs[self] = new_log(self)
            words = live.words
            words[WORD_CURRENT] = word = log.last = log.last + 1
            words[WORD_ISSUED] = issued = clock()
        except Exception:
            totals.errors += 1
            return original(self, *_given(one, two, three, rest), **named)
        if live.device is not None:
            given = _given(one, two, three, rest)
            sized = given[sized_at] if len(given) > sized_at else None
            return live.device.call(original, self, given, named, (word, log, issued), sized, _size)
        try:
            if named or rest or two is _NONE:
                work = original(self, *_given(one, two, three, rest), **named)
            elif three is _NONE:
                work = original(self, one, two)
            else:
                work = original(self, one, two, three)
        except BaseException:
            _raised(words, word, log, issued)
            raise
        try:
            words[WORD_ISSUED] = 0  # it is launched; whoever waits for it is in it again
            try:
                if listed and type(one) is list:
                    (tensor,) = one
                    size = tensor.nbytes
                else:
                    size = (one if first else two).nbytes
            except (AttributeError, TypeError, ValueError):  # more than one, in lists; or one without a list
                size = _size(one if first else two)
            if work is None:
                _done(live, word, log, issued, size)
            else:
                if pending.work is not None:
                    pending.demote_newest(work)
                pending.work, pending.newest = work, (word, log, issued, size, live.step)
        except Exception:
            totals.errors += 1
        return work

    return recorded


def _other(original: Callable[..., Any], call: Call, recorder: Recorder, groups: ProcessGroups) -> Callable[..., Any]:
    """For what few scripts do often. send and recv have a lane for each peer."""
    logs: dict[Any, LaneLog] = groups.lane_logs(call.op)
    live, pending, totals = recorder.live, recorder.live.pending, recorder.totals
    sized_at, peer_at = call.sized, call.peer
    new_log = functools.partial(groups.lane_log, recorder, call.op)

    def recorded(self: Any, *args: Any, **named: Any) -> Any:
        try:
            peer = -1 if peer_at < 0 else args[peer_at]
            try:
                log = logs[self, peer]
            except KeyError:
                log = logs[self, peer] = new_log(self, peer)
            words = live.words
            words[WORD_CURRENT] = word = log.last = log.last + 1
            words[WORD_ISSUED] = issued = clock()
        except Exception:
            totals.errors += 1
            return original(self, *args, **named)
        if live.device is not None:
            sized = args[sized_at] if 0 <= sized_at < len(args) else None
            size_of = _share_of(self) if call.share else _size
            return live.device.call(original, self, args, named, (word, log, issued), sized, size_of)
        try:
            work = original(self, *args, **named)
        except BaseException:
            _raised(words, word, log, issued)
            raise
        try:
            words[WORD_ISSUED] = 0
            size = _size(args[sized_at]) if sized_at >= 0 else 0
            if call.share:
                size *= self.size()
            if work is None:
                _done(live, word, log, issued, size)
            else:
                pending.add(work, (word, log, issued, size, live.step))
        except Exception:
            totals.errors += 1
        return work

    return recorded


def _given(*arguments: Any) -> tuple[Any, ...]:
    """The arguments that were given: one, two, three, and the tuple of the rest."""
    *first, rest = arguments
    return (*(each for each in first if each is not _NONE), *rest)


def _share_of(group: Any) -> Callable[[Any], int]:
    """The size of an operation by that of one rank's share."""
    return lambda sized: _size(sized) * int(group.size())


def _size(sized: Any) -> int:
    """The size in bytes of a tensor, or of tensors in lists; None: it moves no data."""
    if sized is None:
        return 0
    return sum(map(_size, sized)) if isinstance(sized, (list, tuple)) else sized.nbytes


def _raised(words: memoryview, word: int, log: LaneLog, issued: int, size: int = 0) -> None:
    """An exception came out of the collective: it is in flight no longer, and was never seen to end."""
    words[WORD_ISSUED] = 0
    log.append((word, issued, 0, 0, size))


def _done(live: LiveState, word: int, log: LaneLog, issued: int, size: int) -> None:
    """The call has come back and there is nothing to wait for, unless it is one of a batch."""
    now = clock()
    if not live.pending.add_to_batch((word, log, issued, size, live.step)):
        log.append((word, issued, now, now - issued, size))


def _waiter(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    live, pending, totals = recorder.live, recorder.live.pending, recorder.totals

    # Named as what it stands for: see instrument().
    def wait(self: Any, timeout: Any = _NONE) -> Any:
        words = live.words
        if self is pending.work:  # it was launched last, and the words show that
            word, log, issued, size, _ = pending.newest  # type: ignore[misc]
            pending.work = None
        else:
            pending.demote_newest()
            entry = pending.others.pop(id(self), None)
            if entry is None:  # waited for a second time, given up, on a device, or many in one
                return unknown(self, () if timeout is _NONE else (timeout,))
            word, log, issued, size, _ = entry
            words[WORD_CURRENT] = word
        words[WORD_ISSUED] = began = clock()
        try:
            result = original(self) if timeout is _NONE else original(self, timeout)
        except BaseException:
            _raised(words, word, log, issued, size)
            raise
        try:
            now = clock()
            words[WORD_ISSUED] = 0
            append = log.append  # called as a method it would cost more
            append((word, issued, now, now - began, size))
        except Exception:
            totals.errors += 1
        return result

    def unknown(work: Any, args: tuple[Any, ...]) -> Any:
        if id(work) in pending.batches:
            return finish(pending.batches.pop(id(work)), work, args)
        if live.device is not None:
            return live.device.wait(work, original, *args)
        return original(work, *args)

    def finish(batch: list[Launch], work: Any, args: tuple[Any, ...]) -> Any:
        words, began = live.words, clock()
        words[WORD_CURRENT] = word_of(batch[-1])
        words[WORD_ISSUED] = began
        try:
            result = original(work, *args)
        finally:
            now = clock()
            words[WORD_ISSUED] = 0
        recorder.ended_on_host(batch, now, now - began)
        return result

    return wait


def _batch_start(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Between start and end, calls give works that nobody waits for; the one of the end stands for all of them."""

    def _start_coalescing(self: Any, *args: Any, **named: Any) -> Any:
        recorder.begin_batch()
        return original(self, *args, **named)

    return _start_coalescing


def _batch_end(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def _end_coalescing(self: Any, *args: Any, **named: Any) -> Any:
        work = original(self, *args, **named)
        recorder.live.words[WORD_ISSUED] = 0
        recorder.end_batch(None if work is None else id(work))
        return work

    return _end_coalescing
