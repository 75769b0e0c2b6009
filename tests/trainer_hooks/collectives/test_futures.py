"""Waits for collectives by their futures, as optimizers that reduce gradients themselves make them."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.launch import Ranks

from laggard.trainer_hooks.record.events import LATE_STEPS, Launch, PendingWork
from laggard.trainer_hooks.record.recorder import Recorder

LATE_SECONDS = 0.2
WAYS = {
    "work": "work.wait()",
    "future": "work.get_future().wait()",
    "dropped": "future = work.get_future(); del work; gc.collect(); future.wait()",
    "then": "work.get_future().then(lambda future: future.value()).wait()",
    "collect_all": "torch.futures.collect_all([work.get_future()]).wait()",
    "wait_all": "torch.futures.wait_all([work.get_future()])",
    "work_after_all": "future = work.get_future(); work.wait(); future.wait()",
}
SCRIPT = f"""
import gc, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for number, wait in enumerate({list(WAYS.values())!r}):
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep({LATE_SECONDS})
    tensor = torch.ones(256 * (number + 1))
    work = dist.all_reduce(tensor, async_op=True)
    exec(wait)
    assert tensor[0] == 2, "the caller goes on before its collective is done"
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_wait_by_a_future_is_a_wait(tmp_path: Path, launch: Callable[..., Ranks]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch(script, extra={"LAGGARD_RECORD_DIR": str(tmp_path / "recording")})
    waits = {
        int(each["bytes"]): each["waited"]
        for each in rows(tmp_path / "recording" / "rank-0.jsonl")
        if each.get("kind") == "collective" and each["op"] == "all_reduce" and each["end"] is not None
    }
    for number, way in enumerate(WAYS):
        waited = waits.get(1024 * (number + 1))
        assert waited is not None and waited >= LATE_SECONDS / 2, f"{way}: {waited} s of {LATE_SECONDS} s"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Handle:
    """What torch gives, a work or a future."""


def test_what_a_future_stands_for_outlives_the_work_whose_id_another_gets() -> None:
    given_up: list[Any] = []
    pending: PendingWork[Launch] = PendingWork(given_up.extend)
    futures = []
    for word in range(50):
        work, future = Handle(), Handle()
        pending.add(work, launch_of(word))
        pending.promise(future, [work])
        futures.append(future)
        del work  # the next one may have its id()
    whole = Handle()
    pending.promise(whole, futures[40:])
    assert [pending.awaited(future) for future in futures[:40]] == [[launch_of(word)] for word in range(40)]
    assert pending.awaited(whole) == [launch_of(word) for word in range(40, 50)]
    assert not any(pending.awaited(future) for future in futures), "each is waited for once"
    del future, futures, whole
    gc.collect()
    assert not pending.promised and not pending.others
    pending.expire(99)
    assert given_up == []


def test_what_nobody_waits_for_is_given_up_with_the_step_after_it() -> None:
    given_up: list[Any] = []
    pending: PendingWork[Launch] = PendingWork(given_up.extend)
    work, future = Handle(), Handle()
    pending.add(work, launch_of(7))
    pending.promise(future, [work])
    pending.expire(1)
    assert given_up == [launch_of(7)]
    assert pending.awaited(future) == []


def launch_of(word: int) -> Any:
    return (word, None, 10, 4, 0)


@pytest.mark.parametrize(("size", "share"), [(1_000_000, 0.5), (8, 0.0)], ids=["gradients", "a number for the log"])
def test_the_share_for_which_nobody_waits_is_by_bytes(size: int, share: float) -> None:
    recorder = Recorder([])
    assert recorder.unwaited_share() == 0.0
    recorder.ended_on_host([(1, None, 10, 1_000_000, 0)], 20, 5)  # type: ignore[list-item]
    recorder.live.pending.add(Handle(), (2, None, 10, size, 0))  # type: ignore[arg-type]
    recorder.live.pending.expire(LATE_STEPS)
    assert recorder.unwaited_share() == pytest.approx(share, abs=0.001)
    assert recorder.unwaited_share() == 0.0, "nothing was added since"


def test_a_wait_counts_some_steps_later_and_what_is_left_is_given_up_at_the_end() -> None:
    given_up: list[Any] = []
    pending: PendingWork[Launch] = PendingWork(given_up.extend, LATE_STEPS)
    works = [Handle() for _ in range(3)]
    for word, work in enumerate(works):
        pending.add(work, launch_of(word))
    pending.expire(LATE_STEPS - 1)
    assert pending.awaited(works[0]) == [launch_of(0)]
    pending.expire(LATE_STEPS)
    assert given_up == [launch_of(1), launch_of(2)]
    assert pending.awaited(works[1]) == []
