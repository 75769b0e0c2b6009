"""Process groups and works that are written in Python and leave methods to torch, or call torch's by super().

Prints what came of each call. With the hooks, also how many collectives they saw. Words: `device`: the process computes
on a lazy device; `late`: the hooks come once there are such classes.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

calls: list[str] = []
kept: list[Any] = []
ENDING_CAN_HANG = torch.__version__ < (2, 9)
"""Whether a group's destructor can hang, without hooks too (pytorch#154976): then the groups are kept, and the process
ends at once."""


def tensor() -> Any:
    return torch.ones(4)


def _options(name: str) -> Any:
    return getattr(c10d, name)()


CALLS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "allreduce": lambda call: call([tensor()], _options("AllreduceOptions")),
    "allreduce_coalesced": lambda call: call([tensor()], _options("AllreduceCoalescedOptions")),
    "broadcast": lambda call: call([tensor()], _options("BroadcastOptions")),
    "allgather": lambda call: call([[tensor()]], [tensor()], _options("AllgatherOptions")),
    "reduce_scatter": lambda call: call([tensor()], [[tensor()]], _options("ReduceScatterOptions")),
    "barrier": lambda call: call(_options("BarrierOptions")),
}


def _single(call: Callable[..., Any]) -> Any:
    return call(tensor(), tensor(), [], [], _options("AllToAllOptions"))


def _coalesced(options: str) -> Callable[[Callable[..., Any]], Any]:
    return lambda call: call([tensor()], [tensor()], _options(options))


CALLS |= dict.fromkeys(("alltoall_base", "all_to_all_single"), _single)
CALLS |= dict.fromkeys(
    ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"), _coalesced("AllgatherOptions")
)
CALLS |= dict.fromkeys(
    ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"), _coalesced("ReduceScatterOptions")
)
CALLS = {name: call for name, call in CALLS.items() if hasattr(dist.ProcessGroup, name)}  # the newer names: not in each


class Leaves(dist.ProcessGroup):
    """Leaves all to torch."""


def calling_super(name: str) -> type:
    """A class whose method `name` calls torch's. pybind11 knows such a call by the function's name."""

    def method(self: Any, *args: Any, **named: Any) -> Any:
        calls.append(name)
        return getattr(super(owner, self), name)(*args, **named)

    method.__code__ = method.__code__.replace(co_name=name)
    owner = type("CallsSuper", (dist.ProcessGroup,), {name: method})
    return owner


class Right(dist.ProcessGroup):
    def allreduce(self, tensors: Any, options: Any) -> Any:
        calls.append("right")
        return super().allreduce(tensors, options)


class Both(Leaves, Right):
    """Has Right's method, although it comes to Leaves first."""


class NeverDone(dist._Work):
    """Leaves wait() to torch."""


CLASSES = {name: (Leaves, calling_super(name)) for name in CALLS}


def put_device() -> Any:
    from support.lazy_cuda_device import LazyCudaDevice
    from support.lazy_device import LazyDevice

    from laggard.trainer_hooks.attach import session
    from laggard.trainer_hooks.device.collectives import DeviceCollectives

    recorder = session().recorder
    gpu = LazyCudaDevice(LazyDevice(clock_offset=10**12, drift=2e-5), takes_all=True)
    recorder.live.device = DeviceCollectives(gpu, recorder)
    return gpu


def result_of(act: Callable[[], Any]) -> str:
    calls.clear()
    try:
        work = act()
        if work is not None:
            work.wait()
        return f"done {calls}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]} {calls}"


def made(group_class: Any) -> Any:
    group = group_class(0, 1)
    backend = c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=60))
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    if ENDING_CAN_HANG:
        kept.append(group)
    return group


def main() -> None:
    if "late" in sys.argv:
        from laggard.trainer_hooks.attach import session

        session()
    hooked = "laggard.trainer_hooks.attach" in sys.modules
    gpu = put_device() if hooked and "device" in sys.argv else None
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    for name, call in CALLS.items():
        for group_class in CLASSES[name]:
            group = made(group_class)
            print(
                group_class.__name__,
                name,
                result_of(lambda call=call, group=group, name=name: call(getattr(group, name))),
            )
    both = made(Both)
    print("both", result_of(lambda: CALLS["allreduce"](both.allreduce)))
    work = NeverDone()
    for _ in range(2):
        print("work", result_of(lambda: work.wait(timedelta(milliseconds=20)) and None))
    if hooked:
        from laggard.trainer_hooks.attach import session

        recorder = session().recorder
        entered = sum(first for first, _ in recorder.progress())
        print(f"{entered - len(CALLS)} errors {recorder.totals.errors}", file=sys.stderr)
    if gpu is not None:
        gpu.check()
    dist.destroy_process_group()
    if ENDING_CAN_HANG:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
