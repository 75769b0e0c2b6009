"""The stand-in for torch with CUDA does what torch's source does: support/lazy_torch.py names the places."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.lazy_cudart import CudaError, strays
from support.lazy_device import LazyDevice
from support.lazy_torch import lazy_torch

AT_ONCE = 11  # a build whose guards go back at once


def two(**options: Any) -> Any:
    return lazy_torch(LazyDevice(), LazyDevice(), **options)


def recorded(torch: Any, device: int = 1, timing: bool = True) -> Any:
    event = torch.cuda.Event(enable_timing=timing)
    event.record(torch.cuda.current_stream(device))
    return event


def on_another_thread(act: Callable[[], object]) -> None:
    """`act` on a thread for which no device was chosen."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


# Which device is current.


@pytest.mark.parametrize("cuda", [12, AT_ONCE])
def test_after_a_call_for_another_device_the_former_one_is_current_and_has_no_context(cuda: int) -> None:
    torch = two(cuda=cuda)
    torch.lazy_cuda.put_tensor(1)
    assert torch.cuda.current_device() == 0 and torch.lazy_cuda.contexts == {1}


def test_a_build_for_cuda_12_goes_back_late() -> None:
    torch = two()
    torch.lazy_cuda.put_tensor(1)
    assert torch.lazy_cuda.runtime.get_device() == 1, "the runtime stays where it has a context"
    torch.lazy_cuda.put_tensor(0)
    torch.lazy_cuda.put_tensor(1)
    assert torch.lazy_cuda.runtime.get_device() == 0


def test_another_build_goes_back_at_once() -> None:
    torch = two(cuda=AT_ONCE)
    torch.lazy_cuda.put_tensor(1)
    assert torch.lazy_cuda.runtime.get_device() == 0


def test_each_thread_has_its_own_current_device_and_stream() -> None:
    torch = two()
    torch.cuda.set_device(1)
    torch.cuda.set_stream(torch.cuda.Stream())
    seen: list[int] = []
    on_another_thread(lambda: seen.extend((torch.cuda.current_device(), torch.cuda.current_stream(1).cuda_stream)))
    assert seen == [0, 0] and torch.cuda.current_device() == 1 and torch.cuda.current_stream(1).cuda_stream != 0


@pytest.mark.parametrize(("version", "contexts"), [((2, 7), set()), ((2, 8), {0})])
def test_set_device_of_the_current_device_makes_a_context_in_newer_versions(
    version: tuple[int, int], contexts: set[int]
) -> None:
    torch = two(version=version)
    torch.cuda.set_device(0)
    assert torch.lazy_cuda.contexts == contexts
    torch.cuda.set_device(1)
    assert torch.lazy_cuda.contexts == contexts | {1}


def test_pythons_guard_makes_a_context_where_it_goes_and_none_where_it_goes_back() -> None:
    torch = two()
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0 and torch.lazy_cuda.contexts == {1}
    with torch.cuda.device(None):  # the target, on which there is no context yet
        pass
    assert torch.lazy_cuda.contexts == {0, 1}


def test_questions_make_no_context() -> None:
    torch = two()
    torch.cuda.current_stream(1), torch.cuda.current_stream(), torch.cuda.Event(enable_timing=True)
    torch._C._cuda_getCurrentRawStream(1), torch._C._cuda_hasPrimaryContext(1), torch._C._cuda_getDevice()
    torch.cuda.get_device_properties(1), torch.cuda.is_current_stream_capturing(), torch.cuda.device_count()
    assert torch.lazy_cuda.contexts == set()


@pytest.mark.parametrize(("version", "contexts"), [((2, 13), {0, 1}), ((2, 14), {1})])
def test_the_accelerators_synchronize_goes_back_to_a_device_without_context_by_version(
    version: tuple[int, int], contexts: set[int]
) -> None:
    torch = two(version=version)
    torch.accelerator.synchronize(1)
    assert torch.lazy_cuda.contexts == contexts and torch.cuda.current_device() == 0


# Events.


def test_an_event_is_made_on_its_streams_device_when_it_is_recorded() -> None:
    torch = two()
    event = torch.cuda.Event()
    assert event.device is None and event.query()
    event.wait(torch.cuda.current_stream(1))
    event.synchronize()
    assert torch.lazy_cuda.contexts == set(), "one that was never recorded asks nothing"
    event.record(torch.cuda.current_stream(1))
    assert event.device.index == 1 and torch.lazy_cuda.contexts == {1} and torch.cuda.current_device() == 0


def test_an_event_is_recorded_on_its_own_device_alone() -> None:
    torch = two()
    with pytest.raises(RuntimeError, match="Event device 1 does not match recording stream's device 0"):
        recorded(torch).record(torch.cuda.current_stream(0))


@pytest.mark.parametrize("what", ["query", "synchronize", "elapsed_time"])
def test_what_has_no_guard_makes_a_context_on_the_threads_device(what: str) -> None:
    torch = two()
    one, two_ = recorded(torch), recorded(torch)
    act = {"query": one.query, "synchronize": one.synchronize, "elapsed_time": lambda: one.elapsed_time(two_)}[what]
    act()
    assert torch.lazy_cuda.contexts == {1}, "built for CUDA 12 the runtime is still on the events' device"
    on_another_thread(act)
    assert torch.lazy_cuda.contexts == {0, 1}


@pytest.mark.parametrize(("version", "contexts"), [((2, 7), {1}), ((2, 8), {0, 1})])
def test_elapsed_time_asks_before_its_guard_in_newer_versions(version: tuple[int, int], contexts: set[int]) -> None:
    torch = two(version=version, cuda=AT_ONCE)
    recorded(torch).elapsed_time(recorded(torch))
    assert torch.lazy_cuda.contexts == contexts


@pytest.mark.parametrize("how", ["wait", "record", "stream.synchronize", "stream.query"])
def test_what_has_a_guard_makes_a_context_on_the_streams_device(how: str) -> None:
    torch = two(cuda=AT_ONCE)
    stream, event = torch.cuda.current_stream(1), recorded(torch)
    {"wait": lambda: event.wait(stream), "record": lambda: event.record(stream)}.get(
        how, getattr(stream, how.removeprefix("stream."), None)
    )()
    assert torch.lazy_cuda.contexts == {1}


@pytest.mark.parametrize(("version", "kind"), [((2, 7), CudaError), ((2, 8), ValueError)])
def test_events_without_timing_have_no_distance(version: tuple[int, int], kind: type[Exception]) -> None:
    torch = two(version=version)
    with pytest.raises(kind, match="enable_timing|invalid resource handle"):
        recorded(torch).elapsed_time(recorded(torch, timing=False))


@pytest.mark.parametrize(("version", "kind"), [((2, 7), RuntimeError), ((2, 8), ValueError)])
def test_events_that_were_never_recorded_have_no_distance(version: tuple[int, int], kind: type[Exception]) -> None:
    torch = two(version=version)
    with pytest.raises(kind, match="must be recorded"):
        recorded(torch).elapsed_time(torch.cuda.Event(enable_timing=True))


def test_events_of_two_devices_have_no_distance() -> None:
    torch = two()
    with pytest.raises(CudaError, match="invalid resource handle"):
        recorded(torch, 0).elapsed_time(recorded(torch, 1))


@pytest.mark.parametrize(("version", "text"), [((2, 7), "device not ready"), ((2, 8), "must be completed")])
def test_events_that_have_not_come_have_no_distance(version: tuple[int, int], text: str) -> None:
    torch = two(version=version)
    first, gate = recorded(torch), torch.lazy.block()
    last = recorded(torch)
    with pytest.raises(RuntimeError, match=text):
        first.elapsed_time(last)
    assert not last.query()
    gate.set()
    last.synchronize()
    assert first.elapsed_time(last) > 0


def test_external_events_are_known_to_newer_versions() -> None:
    with pytest.raises(TypeError, match="external"):
        two(version=(2, 7)).cuda.Event(external=True)
    two(version=(2, 8)).cuda.Event(enable_timing=True, blocking=True, interprocess=True, external=True)


# Streams.


def test_streams_come_from_pools_with_the_priorities_that_torch_has() -> None:
    torch = two()
    streams = [torch.cuda.Stream(1) for _ in range(33)]
    assert torch.lazy_cuda.contexts == {1} and len(set(streams)) == 32 and streams[32] == streams[0]
    least, greatest = torch.cuda.Stream.priority_range()
    urgent = torch.cuda.Stream(1, priority=-100)
    assert (least, urgent.priority) == (0, greatest) and urgent not in streams


def test_a_stream_of_another_library_is_of_the_device_that_is_named() -> None:
    torch = two()
    theirs = torch.lazy.new_stream()
    stream = torch.cuda.ExternalStream(theirs.number, device=1)
    assert (stream.cuda_stream, stream.device_index) == (theirs.number, 1) and torch.cuda.current_device() == 0
    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 1 and torch.cuda.current_stream() == stream
        assert torch._C._cuda_getCurrentRawStream(1) == theirs.number
    assert torch.cuda.current_device() == 0 and torch.cuda.current_stream(1) != stream


def test_the_default_streams_of_two_devices_are_two() -> None:
    torch = two()
    one, other = torch.cuda.current_stream(0), torch.cuda.current_stream(1)
    assert one.cuda_stream == other.cuda_stream == 0 and one != other


# Captures.


def capturing(torch: Any, mode: str = "global") -> Any:
    torch.cuda.set_device(1)
    torch.cuda.set_stream(torch.cuda.Stream())
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode=mode)
    return graph


def test_the_default_stream_is_not_captured() -> None:
    with pytest.raises(RuntimeError, match="non-default stream"):
        two().cuda.CUDAGraph().capture_begin()


def test_only_the_current_devices_current_stream_is_asked_about() -> None:
    torch = two()
    torch.lazy_cuda.put_tensor(0)
    graph = capturing(torch)
    assert torch.cuda.is_current_stream_capturing()
    torch.cuda.set_device(0)
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.set_device(1)
    graph.capture_end()
    assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize(
    ("mode", "whose", "fails"),
    [
        ("global", "own", True),
        ("global", "another", True),
        ("thread_local", "own", True),
        ("thread_local", "another", False),
        ("relaxed", "own", False),
    ],
)
def test_a_query_during_a_capture_by_its_mode(mode: str, whose: str, fails: bool) -> None:
    torch = two()
    event = recorded(torch)
    graph = capturing(torch, mode)
    ask = event.query if whose == "own" else lambda: on_another_thread(event.query)
    if not fails:
        ask()
        graph.capture_end()
        return
    with pytest.raises(CudaError, match="not permitted when stream is capturing"):
        ask()
    with pytest.raises(CudaError, match="previous error during capture"):
        graph.capture_end()


def test_an_event_recorded_in_a_capture_may_not_be_asked_even_afterwards() -> None:
    torch = two()
    graph = capturing(torch)
    event = recorded(torch)
    graph.capture_end()
    for ask in (event.query, event.synchronize):
        with pytest.raises(CudaError, match="last recorded in a capturing stream"):
            ask()
    event.record(torch.cuda.current_stream(1))
    event.synchronize()


def test_nothing_waits_for_a_stream_that_is_captured() -> None:
    for wait in (lambda torch: torch.cuda.synchronize(1), lambda torch: torch.cuda.current_stream().synchronize()):
        torch = two()
        capturing(torch, "relaxed")
        with pytest.raises(CudaError, match="not permitted when stream is capturing"):
            wait(torch)


def test_the_default_stream_may_not_be_asked_about_while_a_blocking_stream_is_captured() -> None:
    torch = two()
    torch.cuda.set_device(1)
    runtime = torch.lazy_cuda.runtime
    runtime.stream_begin_capture(torch.lazy.new_stream(blocking=True))
    with pytest.raises(CudaError, match="legacy stream depend on a capturing blocking stream"):
        torch.cuda.is_current_stream_capturing()
    with pytest.raises(CudaError, match="legacy stream"):
        recorded(torch)


def test_a_capture_ends_in_its_thread_and_on_its_stream() -> None:
    torch = two()
    graph = capturing(torch)
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="same stream it began on"):
        graph.capture_end()
    stream = torch.cuda.current_stream()

    def end() -> None:
        torch.cuda.set_stream(stream)
        graph.capture_end()

    with pytest.raises(CudaError, match="from another thread"):
        on_another_thread(end)
    graph.capture_end()


def test_what_is_launched_into_a_capture_does_not_run() -> None:
    torch = two()
    graph = capturing(torch)
    gate = torch.lazy.block()
    graph.capture_end()
    torch.cuda.synchronize(1)
    assert not gate.is_set(), "nothing waited for the kernel that never ends"


# Initialization, forks, errors that stay.


def test_cuda_is_initialized_by_the_first_call_that_needs_it() -> None:
    torch = two(initialized=False)
    torch._C._cuda_getCurrentRawStream(1)
    assert not torch.cuda.is_initialized()
    torch.cuda.current_device()
    assert torch.cuda.is_initialized() and torch.lazy_cuda.contexts == set()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12: the child ends by _exit()
def test_a_forked_child_has_no_cuda() -> None:
    torch = two()
    event = recorded(torch)
    says: list[str] = []
    child = os.fork()
    if not child:
        for act in (torch.cuda.current_device, lambda: torch._C._cuda_exchangeDevice(1), event.query):
            try:
                act()
            except RuntimeError as error:
                says.append(str(error).splitlines()[0])
        refused = [it.startswith("Cannot re-initialize CUDA in forked subprocess") for it in says]
        right = refused == [True, True, False] and says[2] == "CUDA error: initialization error"
        os._exit(0 if right and not torch.cuda.is_initialized() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.cuda.is_initialized()


def test_an_error_of_the_gpu_stays() -> None:
    torch = two()
    torch.cuda.set_device(1)
    event = recorded(torch)
    torch.lazy_cuda.runtime.broken = "cudaErrorAssert"
    for act in (event.query, torch.cuda.current_device, torch.cuda.is_current_stream_capturing):
        with pytest.raises(CudaError, match="device-side assert"):
            act()


# Whose contexts they are.


def hooks_that(act: str) -> Callable[..., object]:
    """A function of the hooks that does `act`."""
    names: dict[str, Any] = {"__name__": "laggard.trainer_hooks.made_up"}
    exec(f"def call(it, *args): return {act}", names)
    return names["call"]  # type: ignore[no-any-return]


@pytest.fixture
def _strays_are_wanted() -> Any:
    from support.lazy_cudart import MADE

    yield
    MADE.clear()


@pytest.mark.usefixtures("_strays_are_wanted")
def test_a_context_that_the_hooks_made_is_a_stray_until_the_script_uses_the_device() -> None:
    torch = two(cuda=AT_ONCE)
    event = recorded(torch)
    hooks_that("it.query()")(event)
    assert len(strays()) == 1 and strays()[0].startswith("GPU 0: query() in laggard.trainer_hooks.made_up")
    torch.lazy_cuda.put_tensor(0)
    assert strays() == []


def test_a_wait_of_the_scripts_that_the_hooks_pass_on_is_the_scripts() -> None:
    torch = two(cuda=AT_ONCE)
    event = recorded(torch)
    hooks_that("it(*args)")(torch.cuda.Event.synchronize, event)
    assert torch.lazy_cuda.contexts == {0, 1} and strays() == []
