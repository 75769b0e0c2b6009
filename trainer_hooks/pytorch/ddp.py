"""Records the all_reduces that DistributedDataParallel's reducer makes in C++, and how long the backward pass waits for
them.

The reducer launches its last all_reduce when the last gradient is there, and waits for all of them before the backward
pass ends. The time between is the exposed wait. Hooks on all parameters find out whose gradient comes last; then they
are removed, except that one. Gradients and buckets are not touched, and no communication hook is used.
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

_CALL_SITES: Final = itertools.count()  # an id() could belong to another object later
_AGREEING_PASSES: Final = 2  # backward passes in a row with the same last gradient, until it is taken for granted


class Reducer:
    """The reducer of one DDP module."""

    def __init__(self, module: Any, recorder: Recorder, groups: ProcessGroups, native: NativeCollectives) -> None:
        self._module = weakref.ref(module)
        self.group = module.process_group
        self._call_site = "ddp", next(_CALL_SITES)
        self._other_call_site = "ddp", next(_CALL_SITES)  # for what was not this reducer's
        self._recorder = recorder
        self._groups = groups
        self._native = native
        self._handles: dict[int, Any] = {}  # of the hooks, by the parameter's index
        self._last = (-1, 0)  # the index of the parameter whose gradient came last, and when that was
        self._mark: Any = None  # of that moment, where the module is on a device
        self._expected_last = -1
        self._agreeing = 0
        self._hook_parameters()

    def _hook_parameters(self, only: int | None = None) -> None:
        """Has hooks on all parameters, or on one alone."""
        module = self._module()
        parameters = [each for each in module.module.parameters() if each.requires_grad] if module else []
        wanted = set(range(len(parameters)) if only is None else [only])
        for index in set(self._handles) - wanted:
            self._handles.pop(index).remove()
        for index in wanted - set(self._handles):
            self._handles[index] = parameters[index].register_post_accumulate_grad_hook(self._gradient_hook(index))

    def _gradient_hook(self, index: int) -> Any:
        live = self._recorder.live

        def arrived(parameter: Any) -> None:
            self._last = index, clock()
            if live.device is not None:
                self._put_mark(live.device, parameter)

        def nothing(_: Any) -> None:
            return None

        arrived._torchdynamo_inline = nothing  # type: ignore[attr-defined]
        return arrived

    def _put_mark(self, device: DeviceTimer, parameter: Any) -> None:
        device.release(self._mark)
        self._mark = device.mark() if device.carries(parameter, self.group) else None

    @property
    def last_gradient_at(self) -> int:
        """The time at which the last gradient came."""
        return self._last[1]

    def after_backward(self, began: int, is_last: bool) -> None:
        """The backward pass that began at `began` is about to end. `is_last`: its last gradient was this module's, so
        the wait at its end is this reducer's."""
        index, arrived = self._last
        if arrived >= began:
            device = self._recorder.live.device
            if device is None:
                self._record_on_host(began, arrived, is_last)
            else:
                self._record_on_device(device, began, is_last)
            if self._agreeing < _AGREEING_PASSES or index != self._expected_last:
                self._learn(index)
        elif self._expected_last >= 0 and self._native.record_new(self.group, self._other_call_site):
            # The expected gradient comes no more, or the collectives were not this module's: these must not be taken
            # for its buckets.
            self._expected_last, self._agreeing = -1, 0
            self._hook_parameters()

    def _record_on_host(self, began: int, launched: int, is_last: bool) -> None:
        end, pending = clock(), self._recorder.live.pending
        launches = self._native.take_new(self.group, launched, self._call_site)
        if pending:
            handed = pending.take(began, self._lane_logs())
            launches += handed
            launched = max([launched, *map(issued_at, handed)])
        self._recorder.ended_on_host(launches, end, end - launched if is_last else 0)

    def _record_on_device(self, device: DeviceTimer, began: int, is_last: bool) -> None:
        handed, before = device.take(began, self._lane_logs(), self._mark)
        after, self._mark = device.mark(), None
        launches = self._native.take_new(self.group, self._last[1], self._call_site)
        device.log_native([*launches, *handed], before, after, is_last)

    def _learn(self, index: int) -> None:
        """Notes that the gradient of the parameter `index` came last in this backward pass."""
        self._agreeing = self._agreeing + 1 if index == self._expected_last else 1
        self._expected_last = index
        if self._agreeing == _AGREEING_PASSES:
            self._hook_parameters(index)

    def _lane_logs(self) -> set[int]:
        """The ids of the group's lane logs. A communication hook in Python may have launched works and left it to the
        reducer to wait for them; by the end of the backward pass the reducer has done so."""
        return {id(log) for _, log in self._groups.lanes(self.group)}


class Reducers:
    """The reducers of a process, one for each DDP module."""

    def __init__(self, recorder: Recorder, groups: ProcessGroups, native: NativeCollectives) -> None:
        self._recorder = recorder
        self._groups = groups
        self._native = native
        self._known: weakref.WeakKeyDictionary[Any, Reducer] = weakref.WeakKeyDictionary()
        self._alive: list[Reducer] = []

    def add(self, module: Any) -> None:
        """Adds the reducer of a DDP module; a second call changes nothing."""
        if module not in self._known:
            self._known[module] = Reducer(module, self._recorder, self._groups, self._native)
            self._alive = list(self._known.values())

    def end(self, group: Any) -> None:
        """A process group is about to end: nothing of it is held any longer."""
        self._alive = [reducer for reducer in self._known.values() if reducer.group is not group]

    def after_backward(self, began: int) -> None:
        """The backward pass that began at `began` is about to end."""
        reducers = self._alive
        if len(reducers) == 1:
            return reducers[0].after_backward(began, is_last=True)
        last = max((reducer.last_gradient_at for reducer in reducers), default=0)
        # Reducers that took part come first: one that did not would take the others' buckets in its group for its own.
        for reducer in sorted(reducers, key=lambda reducer: reducer.last_gradient_at < began):
            reducer.after_backward(began, is_last=reducer.last_gradient_at == last)


def hook_buffer_broadcasts(distributed: Any, recorder: Recorder, native: NativeCollectives) -> None:
    """Records DDP's broadcasts of its buffers: one call into C++ that returns when all of them are there."""
    original = distributed._broadcast_coalesced

    # Has the name of the function in whose place it stands. Any method's name would do harm: pybind11 takes a frame of
    # that name, whose first argument is the group, for the method of a ProcessGroup that is written in Python.
    @functools.wraps(original)
    def _broadcast_coalesced(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
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

    distributed._broadcast_coalesced = _broadcast_coalesced


def _buffers_id(tensors: Any) -> tuple[int, int]:
    """Identifies the call site: the buffers that are broadcast."""
    return tensors[0].data_ptr(), sum(each.nbytes for each in tensors)
