"""The stand-in for torch with CUDA does what torch's source does: support/lazy_torch.py names the places."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.lazy_cudart import CudaError
from support.lazy_device import LazyDevice
from support.lazy_torch import lazy_torch
from support.rows import rows

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


@pytest.mark.parametrize(("version", "contexts"), [((2, 7), set()), ((2, 8), {0})])
def test_set_device_of_the_current_device_makes_a_context_in_newer_versions(
    version: tuple[int, int], contexts: set[int]
) -> None:
    torch = two(version=version)
    torch.cuda.set_device(0)
    assert torch.lazy_cuda.contexts == contexts
    torch.cuda.set_device(1)
    assert torch.lazy_cuda.contexts == contexts | {1}


def test_questions_make_no_context() -> None:
    torch = two()
    torch.cuda.current_stream(1), torch.cuda.current_stream(), torch.cuda.Event(enable_timing=True)
    torch._C._cuda_getCurrentRawStream(1), torch._C._cuda_hasPrimaryContext(1), torch._C._cuda_getDevice()
    torch.cuda.get_device_properties(1), torch.cuda.is_current_stream_capturing(), torch.cuda.device_count()
    assert torch.lazy_cuda.contexts == set()


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


# Captures.


def capturing(torch: Any, mode: str = "global") -> Any:
    torch.cuda.set_device(1)
    torch.cuda.set_stream(torch.cuda.Stream())
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode=mode)
    return graph


@rows("hooks/capture_modes")
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
