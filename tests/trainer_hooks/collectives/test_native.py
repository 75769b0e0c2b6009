"""What the Flight Recorder holds, less what the hooks saw, is what C++ made."""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import TRAINING
from support.rows import rows
from support.torch_version import GLOO_CAN_BE_RECORDED, LAUNCHES_ARE_HOOKED
from support.warm import Warm

from laggard.rankfile import RankFileReader
from laggard.rankfile.fact_names import (
    RECORDER_ABSENT,
    RECORDER_OFF,
    RECORDER_SMALL,
    RECORDER_UNSAFE,
    UNNAMED_COLLECTIVES,
    UNNAMED_REASONS,
)
from laggard.trainer_hooks.collectives.flight_recorder import RecordedCollective, read_status, without_known
from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.collectives.native import NativeCollectives
from laggard.trainer_hooks.collectives.process_group import hook_calls
from laggard.trainer_hooks.record.ending import Facts
from laggard.trainer_hooks.record.recorder import Recorder

TRAINING_SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(6):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
after_a_beat()
dist.destroy_process_group()
"""

COLLECTIVES = st.lists(
    st.builds(
        RecordedCollective, st.sampled_from(["all_reduce", "broadcast", "all_gather"]), st.sampled_from([4, 8, 4096])
    ),
    max_size=12,
)


@given(COLLECTIVES, COLLECTIVES, st.randoms())
def test_known_collectives_are_removed(
    known: list[RecordedCollective], others: list[RecordedCollective], random: object
) -> None:
    recorded = known + others
    random.shuffle(recorded)  # type: ignore[attr-defined]
    left = without_known(recorded, known)
    assert Counter(left) == Counter(others)
    remaining = iter(recorded)
    assert all(each in remaining for each in left), "in the order in which they were launched"


@given(COLLECTIVES, st.sampled_from([4, 8, 4096]))
def test_a_reduce_scatter_is_known_as_what_gloo_makes_of_it(others: list[RecordedCollective], size: int) -> None:
    left = without_known(
        [*others, RecordedCollective("all_reduce", size)], [RecordedCollective("reduce_scatter", size)]
    )
    assert len(left) == len(others)
    assert Counter(each.op for each in left) == Counter(each.op for each in others)


def test_a_collective_of_another_size_is_known_by_its_operation() -> None:
    assert without_known(
        [RecordedCollective("scatter", 2048), RecordedCollective("all_reduce", 4)],
        [RecordedCollective("scatter", 1024)],
    ) == [RecordedCollective("all_reduce", 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "reason"), [("2000", None), ("0", RECORDER_OFF), ("1", RECORDER_SMALL)])
def test_a_rank_reports_why_it_cannot_name_collectives_of_cpp(
    size: str, reason: str | None, tmp_path: Path, warm_torch: Warm
) -> None:
    script = tmp_path / "train.py"
    script.write_text((TRAINING / "beats.py").read_text() + TRAINING_SCRIPT)
    environment = {"LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "RANK": "0", "WORLD_SIZE": "1"}
    done = warm_torch.run(["-m", "laggard", "run", script], {**environment, "TORCH_FR_BUFFER_SIZE": size})
    assert done.returncode == 0, done.stderr
    some_lost = reason is not None or not GLOO_CAN_BE_RECORDED
    if some_lost:  # with torch's own hooks only those from before these were put in
        reason = None if LAUNCHES_ARE_HOOKED else reason if GLOO_CAN_BE_RECORDED else RECORDER_ABSENT
    (path,) = (tmp_path / "ranks").rglob("*.rank")
    with RankFileReader(str(path)) as file:
        counters = file.counters()
        assert file.facts().get(UNNAMED_COLLECTIVES) == reason
        assert counters is not None and bool(counters.lost) == some_lost
    assert done.stderr.count("are not recorded") == (reason is not None), "logged once"


class Backend:
    """Stands in for a backend: what it counts, and what its Flight Recorder holds."""

    def __init__(self, name: str) -> None:
        self._name, self.count, self.entries = name, 0, list[dict[str, Any]]()

    def name(self) -> str:
        return self._name

    def _get_sequence_number_for_group(self) -> int:
        return self.count

    def record(self, op: str, floats: int) -> None:
        self.entries.append(
            {
                "record_id": len(self.entries),
                "process_group": ["0", "default_pg"],
                "profiling_name": f"nccl:{op}",
                "is_p2p": False,
                "time_created_ns": str(time.time_ns()),
                "input_sizes": [[floats]],
                "input_dtypes": ["Float"],
            }
        )

    def dump(self, collectives: bool, only_active: bool) -> bytes:
        status = {"0": {"last_enqueued_collective": self.count}}
        return json.dumps({"pg_status": status, **({"entries": self.entries} if collectives else {})}).encode()


class Tensor:
    nbytes = 8


class Group:
    """Stands in for a ProcessGroup of one backend or two: it counts as NCCL does, all of a batch as one."""

    group_name = "0"

    def __init__(self, **backends: Backend) -> None:
        self._device_types = list(backends)
        self._backends = backends
        self.records_batches = False  # since torch 2.7: not only as a whole
        self._batch: list[Any] | None = None

    def _get_backend(self, device: str) -> Backend:
        return self._backends[device]

    def _get_sequence_number_for_group(self) -> int:
        return next(iter(self._backends.values())).count

    def _start_coalescing(self) -> None:
        self._batch = []

    def _end_coalescing(self) -> None:
        self._backends["cuda"].count += bool(self._batch)
        self._backends["cuda"].record("coalesced", 2)
        self._batch = None

    def allreduce(self, tensors: Any, options: Any = None) -> None:
        if self._batch is not None:
            self._batch.append(tensors)
            if self.records_batches:
                self._backends["cuda"].record("all_reduce", 2)
        else:
            self.make("cuda", "all_reduce", 2)

    def make(self, device: str, op: str, floats: int) -> None:
        """As C++ makes a collective: no method of Python's is called."""
        self._backends[device].count += 1
        self._backends[device].record(op, floats)


class Groups(ProcessGroups):
    def members(self, group: Any) -> tuple[int, ...]:
        return (0, 1)

    def _role(self, members: tuple[int, ...], group: Any) -> str:
        return "dp"


def _be_torch(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Stands in for a torch of that version, of which these tests need no more than the version."""
    module: Any = ModuleType("torch")
    module.__version__ = version
    monkeypatch.setitem(sys.modules, "torch", module)


@pytest.fixture
def torch_binding(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands in for torch's binding, with the recorders of these backends: as torch 2.13 has them, or torch 2.15."""

    def install(*backends: Backend, by_name: bool) -> None:
        _be_torch(monkeypatch, "2.15.0+cu132" if by_name else "2.13.0+cu126")
        monkeypatch.delenv("TORCH_NCCL_CUDA_EVENT_CACHE", raising=False)
        module: Any = ModuleType("torch._C._distributed_c10d")
        dumps = {backend.name(): backend.dump for backend in backends}

        def of(backend: str) -> Any:
            return dumps.get(backend, lambda collectives, active: b'{"pg_status":{}}')

        module._dump_nccl_trace_json = of("nccl")
        module._dump_fr_trace_json = of("gloo")
        if by_name:
            module._dump_fr_trace_json = lambda *what, backend="gloo": of(backend)(*what)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def watched(group: Group) -> tuple[NativeCollectives, Recorder, ProcessGroups]:
    """The collectives that C++ makes in `group`, which the hooks watch from here on, and see the calls of."""
    recorder, groups = Recorder([]), Groups()
    native = NativeCollectives(recorder, groups, Facts())
    hooked = type("Hooked", (type(group),), {})
    hook_calls(hooked, recorder, groups)
    group.__class__ = hooked
    native.record_new(group)
    return native, recorder, groups


@pytest.fixture
def nccl(torch_binding: Any) -> tuple[Group, NativeCollectives, Recorder, ProcessGroups]:
    """A group of NCCL alone, as torch 2.13 has it."""
    backend = Backend("nccl")
    torch_binding(backend, by_name=False)
    group = Group(cuda=backend)
    return group, *watched(group)


def recorded(recorder: Recorder) -> dict[str, int]:
    recorder.drain()
    assert recorder.totals.lost == recorder.totals.errors == 0
    return dict(zip((lane.op for lane in recorder.lanes()), recorder.totals.lanes[::3], strict=True))


@pytest.mark.parametrize("name", ["nccl", "nccl2", "nccl-lazy", "custom"])
def test_collectives_of_every_backend_are_found_whatever_the_script_calls_it(name: str, torch_binding: Any) -> None:
    """`init_process_group()` says nothing of the backend, "cpu:gloo,cuda:nccl" names two, and from torch 2.15 on "nccl"
    is another one."""
    gloo, cuda = Backend("gloo"), Backend(name)
    torch_binding(gloo, cuda, by_name=name != "nccl")
    group = Group(cpu=gloo, cuda=cuda)
    native, recorder, _ = watched(group)
    group.make("cuda", "all_reduce", 4)
    group.make("cpu", "broadcast", 1)
    assert native.record_new(group) == 2
    assert recorded(recorder) == {"all_reduce": 1, "broadcast": 1}
    assert dict(each[:2] for each in read_status().groups) == {"#0": 1}


@pytest.mark.parametrize("floats", [2, 16])
@pytest.mark.parametrize("records_batches", [False, True])
def test_a_batch_does_not_hide_what_cpp_makes(floats: int, records_batches: bool, nccl: Any) -> None:
    group, native, recorder, _ = nccl
    group.records_batches = records_batches
    for _ in range(3):
        group._start_coalescing()
        for _ in range(4):
            group.allreduce([Tensor()])
        group._end_coalescing()
        for _ in range(3):
            group.make("cuda", "all_reduce", floats)
        assert native.record_new(group) == 3
    assert recorded(recorder) == {"all_reduce": 3 * 7}


def test_a_batch_of_messages_is_no_collective(nccl: Any) -> None:
    group, native, recorder, _ = nccl
    group._start_coalescing()
    group._end_coalescing()
    group.make("cuda", "all_reduce", 16)
    assert native.record_new(group) == 1
    assert recorded(recorder) == {"all_reduce": 1}


@rows("hooks/unsafe_recorders")
def test_the_flight_recorder_is_not_asked_where_it_reads_events_that_may_be_freed(
    version: str, cache: str | None, safe: bool, nccl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before torch 2.15 it queries its CUDA events without its lock: then they must come from torch's cache."""
    _be_torch(monkeypatch, version)
    if cache is not None:
        monkeypatch.setenv("TORCH_NCCL_CUDA_EVENT_CACHE", cache)
    group, native, recorder, _ = nccl
    group.make("cuda", "all_reduce", 4)
    assert native.record_new(group) == safe and recorder.totals.lost == (not safe)
    assert native._facts.get(UNNAMED_COLLECTIVES) == (None if safe else RECORDER_UNSAFE)
    assert dict(each[:2] for each in read_status().groups) == {"#0": 1}, "the status queries no event"


@pytest.mark.parametrize(
    ("version", "lacks", "backend", "reason"),
    [
        ("2.4.1+cu121", {"_dump_nccl_trace_json", "_dump_fr_trace_json"}, "nccl", RECORDER_ABSENT),
        ("2.6.0+cu124", {"_dump_fr_trace_json"}, "nccl", RECORDER_OFF),
        ("2.6.0+cu124", {"_dump_fr_trace_json"}, "gloo", RECORDER_ABSENT),
        ("2.8.0+cu128", set[str](), "gloo", RECORDER_OFF),
        ("2.13.0+cpu", set[str](), "custom", RECORDER_ABSENT),
    ],
)
def test_a_setting_is_offered_only_where_this_torch_has_one(
    version: str, lacks: set[str], backend: str, reason: str, torch_binding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_binding(by_name=False)
    for name in lacks:
        monkeypatch.delattr(sys.modules["torch._C._distributed_c10d"], name)
    monkeypatch.setattr("torch.__version__", version)
    unrecorded = Backend(backend)
    group = Group(cpu=unrecorded)
    native, recorder, _ = watched(group)
    group.make("cpu", "all_reduce", 4)
    assert native.record_new(group) == 0 and recorder.totals.lost == 1
    assert native._facts.get(UNNAMED_COLLECTIVES) == reason
    assert ("BUFFER_SIZE" in UNNAMED_REASONS[reason][1]) == (reason == RECORDER_OFF)


def test_a_group_of_a_name_that_ended_starts_anew(nccl: Any) -> None:
    group, native, recorder, groups = nccl
    group.allreduce([Tensor()])
    group.make("cuda", "broadcast", 16)
    assert native.record_new(group) == 1
    groups.end(group)
    native.end(group)
    cuda = group._backends["cuda"]
    cuda.count = 0
    again = Group(cuda=cuda)
    for _ in range(2):
        again.make("cuda", "broadcast", 16)
    assert native.record_new(again) == 2
    assert recorded(recorder) == {"all_reduce": 1, "broadcast": 3}


class GroupWithHooks(Group):
    """The same with the hooks that torch 2.15 has."""

    def __init__(self, **backends: Backend) -> None:
        super().__init__(**backends)
        self.hooks: dict[int, Any] = {}

    def register_pre_hook(self, number: int, hook: Any) -> None:
        self.hooks[number] = hook

    def unregister_pre_hook(self, number: int) -> None:
        del self.hooks[number]

    def make(self, device: str, op: str, floats: int) -> None:
        tensors = [SimpleNamespace(nbytes=4 * floats)]
        name = {"all_reduce": "HookOpName.ALLREDUCE_COALESCED", "all_gather": "HookOpName.ALLGATHER_BASE"}.get(
            op, f"HookOpName.{op.upper()}"
        )
        for hook in self.hooks.values():
            hook(SimpleNamespace(name=name, input_tensors=tensors, output_tensors=[]))
        self._backends[device].count += op != "send"


def test_torchs_own_hook_names_what_the_flight_recorder_cannot(torch_binding: Any) -> None:
    """The collectives before the hook was put in are lost, and no others."""
    cuda = Backend("nccl2")
    torch_binding(by_name=True)
    group = GroupWithHooks(cuda=cuda)
    native, recorder, groups = watched(group)
    group.make("cuda", "all_reduce", 4)
    assert native.record_new(group) == 0 and recorder.totals.lost == 1
    recorder.totals.lost = 0
    for _ in range(3):
        for op in ("all_gather", "send", "all_reduce"):
            group.make("cuda", op, 4)
        group.allreduce([Tensor()])
        assert native.record_new(group) == 2
    assert recorded(recorder) == {"all_gather": 3, "all_reduce": 6}
    native.end(group)
    assert not group.hooks, "nothing of ours stays in a group that ends"


def test_a_group_has_no_hook_of_torchs_where_the_flight_recorder_answers(torch_binding: Any) -> None:
    cuda = Backend("nccl2")
    torch_binding(cuda, by_name=True)
    group = GroupWithHooks(cuda=cuda)
    native, _, _ = watched(group)
    Group.make(group, "cuda", "all_reduce", 4)
    assert native.record_new(group) == 1 and not group.hooks
