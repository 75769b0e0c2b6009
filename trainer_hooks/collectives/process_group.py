"""Wraps collective calls so that each is timed and the one in flight can be read from outside. This is the hot path.

Whatever Python calls (torch.distributed's functions of any version, DeepSpeed, FSDP, object collectives) ends in one
method call on a ProcessGroup and, where it must be waited for, in Work.wait(). Those are hooked, on the classes: no
name that a script has imported becomes another object, torch.compile sees the functions that it knows, nothing is
counted twice. What C++ calls by itself does not pass here: native.py finds it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from laggard.rankfile.layout import WORD_CURRENT, WORD_ISSUED
from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.collectives.python_groups import HookedMethod, as_method, leave_to_torch
from laggard.trainer_hooks.record.event_log import HotPathState
from laggard.trainer_hooks.record.events import LaneLog, word_of
from laggard.trainer_hooks.record.recorder import Recorder, clock
from laggard.trainer_hooks.wrapping import HOOKED


class CollectiveMethod(NamedTuple):
    """The operation of a method of ProcessGroup. `sized`: the position of the argument that is as large as nccl-tests
    counts the operation, the larger of its two buffers; -1: the operation moves no data. `peer`: the position of the
    other side's rank; -1: there is none. `share`: the argument at `sized` is one rank's share of the operation."""

    op: str
    sized: int
    peer: int = -1
    share: bool = False


COLLECTIVE_METHODS: Final[dict[str, CollectiveMethod]] = {
    "allreduce": CollectiveMethod("all_reduce", 0),
    "allreduce_coalesced": CollectiveMethod("all_reduce", 0),
    "broadcast": CollectiveMethod("broadcast", 0),
    "reduce": CollectiveMethod("reduce", 0),
    "allgather": CollectiveMethod("all_gather", 0),
    "allgather_coalesced": CollectiveMethod("all_gather", 0),
    "_allgather_base": CollectiveMethod("all_gather", 0),
    "all_gather_single": CollectiveMethod("all_gather", 0),
    "allgather_into_tensor_coalesced": CollectiveMethod("all_gather", 0),
    "all_gather_single_coalesced": CollectiveMethod("all_gather", 0),
    "reduce_scatter": CollectiveMethod("reduce_scatter", 1),
    "_reduce_scatter_base": CollectiveMethod("reduce_scatter", 1),
    "reduce_scatter_single": CollectiveMethod("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": CollectiveMethod("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": CollectiveMethod("reduce_scatter", 1),
    "alltoall": CollectiveMethod("all_to_all", 0),
    "alltoall_base": CollectiveMethod("all_to_all", 0),
    "all_to_all_single": CollectiveMethod("all_to_all", 0),
    "gather": CollectiveMethod("gather", 1, share=True),
    "scatter": CollectiveMethod("scatter", 0, share=True),
    "barrier": CollectiveMethod("barrier", -1),
    "monitored_barrier": CollectiveMethod("barrier", -1),
    "send": CollectiveMethod("send", 0, peer=1),
    "recv": CollectiveMethod("recv", 0, peer=1),
    "recv_anysource": CollectiveMethod("recv", 0),
}

_LIST_OPS: Final = ("all_reduce", "broadcast", "reduce")  # take a list, most often of one tensor
_MISSING: Final = object()


def hook(distributed: Any, recorder: Recorder, groups: ProcessGroups) -> None:
    """Hooks `torch.distributed`'s ProcessGroup and Work; a second time changes nothing."""
    if getattr(distributed.ProcessGroup, HOOKED, False):
        return
    setattr(distributed.ProcessGroup, HOOKED, True)
    hook_waits(distributed.Work, recorder)
    hook_futures(sys.modules["torch"]._C, recorder)
    hook_calls(distributed.ProcessGroup, recorder, groups)


def hook_calls(group_class: Any, recorder: Recorder, groups: ProcessGroups) -> None:
    """Records the calls of those COLLECTIVE_METHODS that `group_class`, a class like ProcessGroup, has."""
    hooked: dict[str, HookedMethod] = {}
    for name, method in COLLECTIVE_METHODS.items():
        original = getattr(group_class, name, None)
        if original is not None:
            recorded = instrument(original, method, recorder, groups, name, group_class)
            setattr(group_class, name, recorded)
            hooked[name] = HookedMethod(original, recorded)
    leave_to_torch(group_class, hooked)
    if hasattr(group_class, "_end_coalescing"):
        group_class._start_coalescing = _wrap_batch_start(group_class._start_coalescing, recorder, groups)
        group_class._end_coalescing = _wrap_batch_end(group_class._end_coalescing, recorder, groups)


def hook_waits(work_class: Any, recorder: Recorder) -> None:
    """Times wait() and synchronize() of `work_class`, a class like Work, and of its subclasses that have their own."""
    of_torch = frozenset(_with_subclasses(work_class))
    for each in of_torch:
        if "wait" in vars(each):
            each.wait = _wrap_wait(_unbound(each.wait), recorder, of_torch)
        if "synchronize" in vars(each):
            each.synchronize = _wrap_synchronize(_unbound(each.synchronize), recorder)
        if "get_future" in vars(each):
            each.get_future = _promising(_unbound(each.get_future), "get_future", recorder, of_torch)


def hook_futures(torch_c: Any, recorder: Recorder) -> None:
    """Times Future.wait() for collectives, by whatever way a future came from their works'."""
    of_torch = frozenset((torch_c.Future,))
    original = _unbound(torch_c.Future.wait)

    def wait(self: Any, *args: Any) -> Any:
        return wait_for_any(recorder, self, original, args)

    torch_c.Future.wait = wait
    torch_c.Future.then = _promising(_unbound(torch_c.Future.then), "then", recorder, of_torch)
    collect = torch_c._collect_all

    def collect_all(futures: Any) -> Any:
        return _promised(recorder, collect(futures), futures)

    torch_c._collect_all = collect_all


def _promising(
    original: Callable[..., Any], name: str, recorder: Recorder, of_torch: Collection[Any]
) -> Callable[..., Any]:
    """A method whose result is a future for what its object stands for."""
    as_override = as_method(original, name)

    def promising(self: Any, *args: Any) -> Any:
        called = original if type(self) in of_torch else as_override
        return _promised(recorder, called(self, *args), (self,))

    return promising


def _promised(recorder: Recorder, future: Any, sources: Iterable[Any]) -> Any:
    try:
        device = recorder.live.device
        (recorder.live.pending if device is None else device.pending).promise(future, sources)
    except Exception:
        recorder.totals.errors += 1
    return future


def _with_subclasses(work_class: Any) -> Iterator[Any]:
    """The class and its subclasses that are torch's own, or of the same module."""
    yield work_class
    for subclass in work_class.__subclasses__():
        if subclass.__module__.startswith(("torch._C", work_class.__module__)):
            yield from _with_subclasses(subclass)


def instrument(
    original: Callable[..., Any],
    method: CollectiveMethod,
    recorder: Recorder,
    groups: ProcessGroups,
    name: str,
    group_class: Any = None,
) -> Callable[..., Any]:
    """Returns the method `original` with its calls recorded. Its arguments and results are unchanged. `group_class`:
    the class whose method it is; groups of its subclasses are written in Python (python_groups.py)."""
    wrap = _wrap_sized if method.peer < 0 <= method.sized and not method.share else _wrap_other
    original = _unbound(original)
    ways = _Ways(group_class, original, as_method(original, name))
    recorded = wrap(ways, method, recorder, groups)
    functools.update_wrapper(recorded, original, assigned=("__doc__",), updated=())
    recorded.__code__ = recorded.__code__.replace(co_name=name)
    recorded.__name__ = name
    return recorded


class _Ways(NamedTuple):
    """Two ways to call a method of torch's: `original` for objects of the class itself, from any function, and
    `as_override` for those of its subclasses, from functions that do not have the method's name."""

    of_class: Any
    original: Callable[..., Any]
    as_override: Callable[..., Any]


def _unbound(method: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a method of pybind11's. Called with the object as its first argument it does the same,
    without the tuple that is made for the method on the way (0.03 to 0.08 us)."""
    if type(method).__name__ != "instancemethod":
        return method
    function: Callable[..., Any] = method.__func__  # type: ignore[attr-defined]
    return function


def _wrap_sized(ways: _Ways, method: CollectiveMethod, recorder: Recorder, groups: ProcessGroups) -> Callable[..., Any]:
    """Wraps the operations that matter. `recorded` is one long function on purpose: a call inside it costs a tenth of
    what the whole hook may; named arguments cost less than *args."""
    of_class, original, as_override = ways
    logs: dict[Any, LaneLog] = groups.lane_logs(method.op)
    live, pending, totals = recorder.live, recorder.live.pending, recorder.totals
    first, sized_at, listed = method.sized == 0, method.sized, method.op in _LIST_OPS
    new_log = functools.partial(groups.lane_log, recorder, method.op)

    def recorded(
        self: Any, one: Any = _MISSING, two: Any = _MISSING, three: Any = _MISSING, *rest: Any, **named: Any
    ) -> Any:
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
            return original(self, *_passed(one, two, three, rest), **named)
        device = live.device
        if device is not None and device.timed and device.on_training_thread():
            usual = three is _MISSING and two is not _MISSING  # and then there is no rest
            args = (one, two) if usual else _passed(one, two, three, rest)
            sized = args[sized_at] if len(args) > sized_at else None
            called = original if type(self) is of_class else as_override
            return device.call(called, self, args, named, (word, log, issued), sized, _size)
        try:
            if named or rest or two is _MISSING:
                work = original(self, *_passed(one, two, three, rest), **named)
            elif three is _MISSING:
                work = original(self, one, two)
            else:
                work = original(self, one, two, three)
        except BaseException:
            _log_failed(words, word, log, issued, _size_if_any(one if first else two))
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
            if device is not None:
                options = named.get("opts", two if three is _MISSING else three)
                device.launched_untimed(work, (word, log, issued, size, live.step), options)
            elif work is None:
                _log_returned(live, word, log, issued, size)
            else:
                if pending.key:
                    pending.demote_newest(work)
                pending.key, pending.newest = id(work), (word, log, issued, size, live.step)
        except Exception:
            totals.errors += 1
        return work

    return recorded


def _wrap_other(ways: _Ways, method: CollectiveMethod, recorder: Recorder, groups: ProcessGroups) -> Callable[..., Any]:
    """Wraps the operations that few scripts call often. send and recv have a lane for each peer."""
    of_class, original, as_override = ways
    logs: dict[Any, LaneLog] = groups.lane_logs(method.op)
    live, pending, totals = recorder.live, recorder.live.pending, recorder.totals
    sized_at, peer_at = method.sized, method.peer
    new_log = functools.partial(groups.lane_log, recorder, method.op)

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
        device = live.device
        if device is not None and device.timed and device.on_training_thread():
            sized = args[sized_at] if 0 <= sized_at < len(args) else None
            size_of: Callable[[Any], int] = (lambda share: _size(share) * int(self.size())) if method.share else _size
            called = original if type(self) is of_class else as_override
            return device.call(called, self, args, named, (word, log, issued), sized, size_of)
        try:
            work = original(self, *args, **named)
        except BaseException:
            _log_failed(words, word, log, issued, _size_if_any(args[sized_at]) if 0 <= sized_at < len(args) else 0)
            raise
        try:
            words[WORD_ISSUED] = 0
            size = _size(args[sized_at]) if sized_at >= 0 else 0
            if method.share:
                size *= self.size()
            if device is not None:
                options = named.get("opts", args[-1] if args else None)
                device.launched_untimed(work, (word, log, issued, size, live.step), options)
            elif work is None:
                _log_returned(live, word, log, issued, size)
            else:
                pending.add(work, (word, log, issued, size, live.step))
        except Exception:
            totals.errors += 1
        return work

    return recorded


def _passed(*arguments: Any) -> tuple[Any, ...]:
    """The positional arguments that the caller passed, of one, two, three and the tuple of the rest."""
    *first, rest = arguments
    return (*(each for each in first if each is not _MISSING), *rest)


def _size(sized: Any) -> int:
    """The size in bytes of a tensor, or of tensors in lists. None: the operation moves no data."""
    if sized is None:
        return 0
    if not isinstance(sized, (list, tuple)):
        return sized.nbytes  # type: ignore[no-any-return]
    return _size(sized[0]) if len(sized) == 1 else sum(map(_size, sized))


def _size_if_any(sized: Any) -> int:
    """_size(), 0 of what has none: a call that fails may have been made with anything."""
    try:
        return _size(sized)
    except Exception:
        return 0


def _log_failed(words: memoryview, word: int, log: LaneLog, issued: int, size: int = 0) -> None:
    """The collective raised an exception: it is in flight no longer, and was never seen to end."""
    words[WORD_ISSUED] = 0
    log.append((word, issued, 0, 0, size))


def _log_returned(live: HotPathState, word: int, log: LaneLog, issued: int, size: int) -> None:
    """The call has returned, and gave nothing to wait for. It is over, unless it is one of a batch."""
    now = clock()
    if not live.pending.add_to_batch((word, log, issued, size, live.step)):
        log.append((word, issued, now, now - issued, size))


def _wrap_wait(original: Callable[..., Any], recorder: Recorder, of_torch: Collection[Any]) -> Callable[..., Any]:
    """`of_torch`: the classes whose works are not written in Python (python_groups.py)."""
    as_wait = as_method(original, "wait")
    live, pending, totals = recorder.live, recorder.live.pending, recorder.totals

    def wait(self: Any, timeout: Any = _MISSING) -> Any:
        words = live.words
        if id(self) == pending.key:  # it was launched last, and the words show that
            word, log, issued, size, _ = pending.newest  # type: ignore[misc]
            pending.key = 0
        elif live.device is not None and id(self) == live.device.at_once:
            return original(self) if timeout is _MISSING else original(self, timeout)
        else:
            if pending.key:
                pending.demote_newest()
            entry = pending.others.pop(id(self), None)
            if entry is None:  # waited for a second time, expired, on a device, or the one of a batch
                called = original if type(self) in of_torch else as_wait
                return wait_for_any(recorder, self, called, () if timeout is _MISSING else (timeout,))
            word, log, issued, size, _ = entry
            words[WORD_CURRENT] = word
        words[WORD_ISSUED] = began = clock()
        try:
            result = original(self) if timeout is _MISSING else original(self, timeout)
        except BaseException:
            _log_failed(words, word, log, issued, size)
            raise
        try:
            now = clock()
            words[WORD_ISSUED] = 0
            append = log.append  # called as a method it would cost more
            append((word, issued, now, now - began, size))
        except Exception:
            totals.errors += 1
        return result

    return wait


def wait_for_any(recorder: Recorder, waited_for: Any, original: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """original(waited_for, ...), the caller's own wait for a batch's work or for a future, recorded."""
    live = recorder.live
    if live.device is not None:
        return live.device.wait(waited_for, original, *args)
    batch = live.pending.awaited(waited_for)
    if not batch:
        return original(waited_for, *args)
    words, began = live.words, clock()
    words[WORD_CURRENT] = word_of(batch[-1])
    words[WORD_ISSUED] = began
    try:
        result = original(waited_for, *args)
    finally:
        now = clock()
        words[WORD_ISSUED] = 0
    recorder.ended_on_host(batch, now, now - began)
    return result


def _wrap_synchronize(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Only on a device it waits: the present stream for the collective. Gloo's does nothing."""
    as_synchronize, live = as_method(original, "synchronize"), recorder.live

    def synchronize(self: Any) -> Any:
        return original(self) if live.device is None else live.device.synchronize(self, as_synchronize)

    return synchronize


def _wrap_batch_start(original: Callable[..., Any], recorder: Recorder, groups: ProcessGroups) -> Callable[..., Any]:
    """Wraps the start of a batch. Calls between start and end return works that nobody waits for; the work that the end
    returns stands for all of them."""

    def _start_coalescing(self: Any, *args: Any, **named: Any) -> Any:
        result = original(self, *args, **named)  # raises where the backend has no batches
        try:
            groups.counts_of(self).begin_batch()
            recorder.begin_batch()
        except Exception:
            recorder.totals.errors += 1
        return result

    return _start_coalescing


def _wrap_batch_end(original: Callable[..., Any], recorder: Recorder, groups: ProcessGroups) -> Callable[..., Any]:
    def _end_coalescing(self: Any, *args: Any, **named: Any) -> Any:
        work = original(self, *args, **named)
        try:
            groups.counts_of(self).end_batch()
            recorder.live.words[WORD_ISSUED] = 0
            recorder.end_batch(None if work is None else id(work))
        except Exception:
            recorder.totals.errors += 1
        return work

    return _end_coalescing
