"""Records the all_reduces that DistributedDataParallel's reducer makes in C++, and how long the backward pass waits for
them.

The reducer launches its last all_reduce when the last gradient is there, and waits for all of them before the backward
pass ends. The time between is the exposed wait. Hooks on all parameters find out whose gradient comes last; then they
are removed, except that one. Gradients and buckets are not touched, and no communication hook is used.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from laggard.kit.environment import ENV_DIGEST_STEPS
from laggard.rankfile.fact_names import DIGEST_NO_MODULE, DIGEST_SHARDED, DIGEST_UNREADABLE
from laggard.trainer_hooks.collectives.groups import ProcessGroups, sharding_groups
from laggard.trainer_hooks.collectives.native import NativeCollectives
from laggard.trainer_hooks.device.gpu import GraphCaptures
from laggard.trainer_hooks.record.ending import DigestLog
from laggard.trainer_hooks.record.events import issued_at
from laggard.trainer_hooks.record.recorder import Recorder, clock

if TYPE_CHECKING:
    from laggard.trainer_hooks.device.collectives import DeviceCollectives
    from laggard.trainer_hooks.device.cuda import DigestCopies


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
            if live.device is not None and live.device.timed:
                self._put_mark(live.device, parameter)

        def nothing(_: Any) -> None:
            return None

        arrived._torchdynamo_inline = nothing  # type: ignore[attr-defined]
        return arrived

    def _put_mark(self, device: DeviceCollectives, parameter: Any) -> None:
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

    def _record_on_device(self, device: DeviceCollectives, began: int, is_last: bool) -> None:
        handed, before = device.take(began, self._lane_logs(), self._mark) if device.pending else ([], self._mark)
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


# A 64-bit digest of parameters, computed where they are, with no synchronisation.
#
# torch.hash_tensor (from torch 2.9 on) is the XOR of all elements, as 64-bit numbers: one that changes changes it.
# Where that is not, or not for a type of numbers, the digest is the sum of the bits of each element, as an integer,
# times an odd weight by its place, modulo 2**64: a flipped bit adds or takes an odd multiple of a power of two below
# 2**64, which is not 0. Neither depends on the order of the additions.

_CHUNK: Final = 1 << 22
"""The elements that are weighted at once: 32 MiB of weights, and as much of products."""

_HASHED: Final = ("float64", "float32", "float16", "bfloat16")


def trained_parameters(modules: Sequence[Any]) -> list[Any]:
    """The parameters, each once, of the modules that have any to train."""
    of_each = [list(module.parameters()) for module in modules]
    trained = [own for own in of_each if any(each.requires_grad for each in own)]
    return list({id(each): each for own in trained for each in own}.values())


def are_sharded(modules: Sequence[Any], parameters: Sequence[Any]) -> bool:
    """Whether ranks hold parts of these parameters: FSDP of either kind, ZeRO-3 (`ds_id`), DTensor (`device_mesh`)."""
    names = ("ds_id", "device_mesh")
    if any(hasattr(each, name) for each in parameters for name in names):
        return True
    parts = [part for module in modules for part in module.modules()]
    return any(type(part).__name__ == "FullyShardedDataParallel" or sharding_groups(part) for part in parts)


def digest(torch: Any, parameters: Sequence[Any]) -> Any:
    """A tensor of one int64, on the device of the first of `parameters`; those on other devices are left out. Raises
    whatever torch does of tensors that it cannot read so."""
    with torch.no_grad():
        device = parameters[0].device
        here = [each.detach() for each in parameters if each.device == device and each.numel()]
        parts = torch.stack([_tensor_digest(torch, each) for each in here])
        return (parts * _weights(torch, len(here), device)).sum()


def _tensor_digest(torch: Any, tensor: Any) -> Any:
    hash_tensor = getattr(torch, "hash_tensor", None)
    if hash_tensor is not None and str(tensor.dtype).removeprefix("torch.") in _HASHED:
        return hash_tensor(tensor).view(torch.int64)
    return weighted_sum(torch, tensor)


def weighted_sum(torch: Any, tensor: Any) -> Any:
    """The sum of the bits of each element times its weight, modulo 2**64: a tensor of one int64."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.contiguous().view(integers).flatten()
    weights = _weights(torch, min(_CHUNK, len(flat)), tensor.device)
    chunks = flat.split(_CHUNK)
    sums = torch.stack([(chunk * weights[: len(chunk)]).sum() for chunk in chunks])
    return (sums * _weights(torch, len(chunks), tensor.device)).sum()


def _weights(torch: Any, count: int, device: Any) -> Any:
    """The first odd numbers."""
    return torch.arange(1, 2 * count, 2, dtype=torch.int64, device=device)


def digest_steps(environ: Mapping[str, str]) -> int:
    """The steps from one digest to the next, by LAGGARD_DIGEST_STEPS; 0: none is asked for, or not by a number."""
    text = environ.get(ENV_DIGEST_STEPS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


class StepDigests:
    """Computes a digest after the first step that ends, and after each whose number `every` divides."""

    def __init__(self, every: int, log: DigestLog, captures: GraphCaptures) -> None:
        self._every, self._log, self._captures = every, log, captures
        self._watched: Callable[[], Iterable[Any]] = tuple
        self._engine_modules: list[weakref.ref[Any]] = []
        self._copies: DigestCopies | None = None
        self._begun = False
        self._over = False  # nothing is computed any more

    def begin(self, recorder: Recorder, watched: Callable[[], Iterable[Any]]) -> None:
        """Has each end of a step of `recorder` followed by what is due then. `watched` returns the modules that the
        process trains, by now."""
        self._watched = watched
        end_step = recorder.end_step

        def end_and_digest(next_step: int) -> None:
            finished = recorder.step
            end_step(next_step)
            try:
                self._step_ended(finished)
            except Exception:  # of a kind of tensor that torch cannot read so, say
                self._over = True
                self._log.skip(DIGEST_UNREADABLE)

        recorder.end_step = end_and_digest  # type: ignore[method-assign]

    def add_module(self, module: Any) -> None:
        """An engine trains `module`."""
        self._engine_modules.append(weakref.ref(module))

    def stop(self) -> None:
        """Computes nothing from here on: the process is a forked child, or ends."""
        self._over = True

    def close(self) -> None:
        """The training is over: takes what has arrived by now."""
        if not self._over:
            self._take_arrived()
        self._over = True

    def _step_ended(self, step: int) -> None:
        if self._over:
            return
        self._take_arrived()
        if self._begun and step % self._every:
            return
        self._begun = True
        modules = [*self._watched(), *filter(None, (each() for each in self._engine_modules))]
        parameters = trained_parameters(modules)
        reason = DIGEST_SHARDED if are_sharded(modules, parameters) else "" if parameters else DIGEST_NO_MODULE
        kind = parameters[0].device.type if parameters else ""
        if not reason and kind not in ("cpu", "cuda"):
            reason = DIGEST_UNREADABLE
        if reason:
            self._over = True
            self._log.skip(reason)
        elif kind == "cpu":
            self._log.add(step, int(digest(sys.modules["torch"], parameters)), self._every)
        elif not self._captures.under_way():
            self._start_copy(step, parameters)

    def _start_copy(self, step: int, parameters: list[Any]) -> None:
        torch = sys.modules["torch"]
        if self._copies is None:
            from laggard.trainer_hooks.device.cuda import DigestCopies

            self._copies = DigestCopies(torch, parameters[0].device.index, self._captures)
        self._copies.start(step, digest(torch, parameters))

    def _take_arrived(self) -> None:
        for step, value in self._copies.arrived() if self._copies is not None else ():
            self._log.add(step, value, self._every)
