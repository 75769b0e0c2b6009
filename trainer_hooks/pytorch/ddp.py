"""DistributedDataParallel: its reducer's all_reduces pass in C++, and how long the backward pass waits for them.

The reducer launches its last all_reduce when the last gradient is there, and waits for all of them before the backward
pass ends. What comes between is the exposed wait. Which parameter's gradient comes last is learned from hooks on all
of them, which go once it is known; one stays. Gradients and buckets are not touched, no communication hook is taken.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any, Final

from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.collectives.native import NativeCollectives
from laggard.trainer_hooks.record.device_timer import DeviceTimer
from laggard.trainer_hooks.record.events import issued_at
from laggard.trainer_hooks.record.recorder import Recorder, clock

_PLACES: Final = itertools.count()  # not the id() of something, which another may have later
_AGREEING: Final = 2  # backward passes in a row with the same last gradient, before it is believed


class Reducer:
    """One DDP module's."""

    def __init__(self, module: Any, recorder: Recorder, groups: ProcessGroups, native: NativeCollectives) -> None:
        self._module = weakref.ref(module)
        self._group = module.process_group
        self._place = "ddp", next(_PLACES)
        self._elsewhere = "ddp", next(_PLACES)
        self._recorder = recorder
        self._groups = groups
        self._native = native
        self._handles: dict[int, Any] = {}
        self._last = (-1, 0)  # the parameter whose gradient came last, and when
        self._mark: Any = None  # of that, where the module is on a device
        self._believed = -1
        self._agreeing = 0
        self._watch()

    def _watch(self, only: int | None = None) -> None:
        """Has hooks on all parameters, or on one."""
        module = self._module()
        parameters = [each for each in module.module.parameters() if each.requires_grad] if module else []
        places = set(range(len(parameters)) if only is None else [only])
        for place in set(self._handles) - places:
            self._handles.pop(place).remove()
        for place in places - set(self._handles):
            self._handles[place] = parameters[place].register_post_accumulate_grad_hook(self._hook(place))

    def _hook(self, place: int) -> Any:
        live = self._recorder.live

        def arrived(parameter: Any) -> None:
            self._last = place, clock()
            if live.device is not None:
                self._put_mark(live.device, parameter)

        def nothing(_: Any) -> None:
            return None

        arrived._torchdynamo_inline = nothing  # type: ignore[attr-defined]
        return arrived

    def _put_mark(self, device: DeviceTimer, parameter: Any) -> None:
        device.release(self._mark)
        self._mark = device.mark() if device.carries(parameter, self._group) else None

    @property
    def arrived(self) -> int:
        """When a gradient came last."""
        return self._last[1]

    def after_backward(self, began: int, counts: bool) -> None:
        """The backward pass that began then is about to be left. `counts`: its last gradient was this module's."""
        place, arrived = self._last
        if arrived >= began:
            device = self._recorder.live.device
            if device is None:
                self._settle_on_host(began, arrived, counts)
            else:
                self._settle_on_device(device, began, counts)
            if self._agreeing < _AGREEING or place != self._believed:
                self._learn(place)
        elif self._believed >= 0 and self._native.record_new(self._group, self._elsewhere):
            # Its gradient comes no more, or what passed was somebody else's: not to be taken for this module's buckets.
            self._believed, self._agreeing = -1, 0
            self._watch()

    def _settle_on_host(self, began: int, launched: int, counts: bool) -> None:
        end, pending = clock(), self._recorder.live.pending
        launches = self._native.take_new(self._group, launched, self._place)
        if pending:
            handed = pending.take(began, self._logs())
            launches += handed
            launched = max([launched, *map(issued_at, handed)])
        self._recorder.ended_on_host(launches, end, end - launched if counts else 0)

    def _settle_on_device(self, device: DeviceTimer, began: int, counts: bool) -> None:
        handed, before = device.take(began, self._logs(), self._mark)
        after, self._mark = device.mark(), None
        device.log_native(
            [*self._native.take_new(self._group, self._last[1], self._place), *handed], before, after, counts
        )

    def _learn(self, place: int) -> None:
        self._agreeing = self._agreeing + 1 if place == self._believed else 1
        self._believed = place
        if self._agreeing == _AGREEING:
            self._watch(place)

    def _logs(self) -> set[int]:
        """Those of the group. A communication hook in Python may have launched works that it left to the reducer to
        wait for: it has, by the end of the backward pass."""
        return {id(log) for _, log in self._groups.lanes(self._group)}


class Reducers:
    """Those of a process, by module."""

    def __init__(self, recorder: Recorder, groups: ProcessGroups, native: NativeCollectives) -> None:
        self._recorder = recorder
        self._groups = groups
        self._native = native
        self._known: weakref.WeakKeyDictionary[Any, Reducer] = weakref.WeakKeyDictionary()
        self._alive: list[Reducer] = []

    def add(self, module: Any) -> None:
        if module not in self._known:
            self._known[module] = Reducer(module, self._recorder, self._groups, self._native)
            self._alive = list(self._known.values())

    def after_backward(self, began: int) -> None:
        reducers = self._alive
        if len(reducers) == 1:
            return reducers[0].after_backward(began, counts=True)
        last = max((reducer.arrived for reducer in reducers), default=0)
        # Those that took part come first: one that rests would take their buckets for its own, being in the same group.
        for reducer in sorted(reducers, key=lambda reducer: reducer.arrived < began):
            reducer.after_backward(began, counts=reducer.arrived == last)


def hook_buffer_broadcasts(distributed: Any, recorder: Recorder, native: NativeCollectives) -> None:
    """Records DDP's broadcasts of its buffers: one call into C++ that returns when all of them are there."""
    original = distributed._broadcast_coalesced

    @functools.wraps(original)
    def broadcast(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        device, began = recorder.live.device, clock()
        before = device.mark() if device is not None else None
        result = original(group, tensors, *args, **kwargs)
        try:
            end = clock()
            if device is None:
                recorder.ended_on_host(native.take_new(group, began, _buffers_id(tensors)), end, end - began)
            else:
                after = device.mark() if device.carries(tensors, group) else None
                device.log_native(native.take_new(group, began, _buffers_id(tensors)), before, after)
        except Exception:
            recorder.totals.errors += 1
        return result

    distributed._broadcast_coalesced = broadcast


def _buffers_id(tensors: Any) -> tuple[int, int]:
    """Tells one broadcast of buffers from another."""
    return tensors[0].data_ptr(), sum(each.nbytes for each in tensors)
