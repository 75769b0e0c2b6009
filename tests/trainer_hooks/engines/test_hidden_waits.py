"""Libraries that hide waits, and loaders that no hook of torch sees: known by their calls."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.warm import Warm

from laggard.locate.job_timings import hiding_libraries
from laggard.rankfile import RankFileReader
from laggard.rankfile.fact_names import HIDDEN_WAITS
from laggard.trainer_hooks import wrapping
from laggard.trainer_hooks.engines.known_calls import ITERATORS, NEXT_METHODS, hook_calls, loader_calls
from laggard.trainer_hooks.record.events import EVALUATION, INPUT

LIBRARIES = {  # as their packages are made; nobody without GPUs has them
    "deep_ep/__init__.py": "from .buffer import Buffer\n",
    "deep_ep/buffer.py": "class Buffer:\n    def __init__(self, group, size=0): self.group, self.size = group, size\n",
    "nvshmem/__init__.py": "",
    "nvshmem/core/__init__.py": "from nvshmem.core.init_fini import init\n",
    "nvshmem/core/init_fini.py": "def init(device=None): return device\n",
}

OTHERS = {  # by module: what a user of the library calls first
    "uccl.ep": "class Buffer:\n    def __init__(self): pass\n",
    "pplx_kernels.all_to_all": "class AllToAll:\n    def __init__(self): pass\n",
    "mscclpp": "class CommGroup:\n    def __init__(self): pass\n",
    "transformer_engine.pytorch.module.base": "def initialize_ub(): pass\n",
}

USE_OTHERS = """
import contextlib, mscclpp, pplx_kernels.all_to_all, transformer_engine.pytorch.module.base, uccl.ep
import torch.distributed._symmetric_memory as symmetric
uccl.ep.Buffer(), pplx_kernels.all_to_all.AllToAll(), mscclpp.CommGroup()
transformer_engine.pytorch.module.base.initialize_ub()
with contextlib.suppress(Exception):
    symmetric.rendezvous(torch.ones(1), "no such group")
"""

SCRIPT = """
import torch, deep_ep, nvshmem.core
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{use}
for _ in range(4):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("", []),
        ("assert deep_ep.Buffer('world', size=5).size == 5", ["DeepEP"]),
        ("assert nvshmem.core.init(device=3) == 3; deep_ep.Buffer('world')", ["DeepEP", "NVSHMEM"]),
        (
            USE_OTHERS,
            ["MSCCL++", "Transformer Engine's user buffers", "UCCL", "pplx-kernels", "torch's symmetric memory"],
        ),
    ],
)
def test_a_rank_says_which_libraries_hide_waits(use: str, told: list[str], tmp_path: Path, warm_torch: Warm) -> None:
    others = {f"{name.replace('.', '/')}.py": text for name, text in OTHERS.items()}
    for name, text in {**LIBRARIES, **others}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(SCRIPT.format(use=use))
    environment = {"LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "LAGGARD_JOB_ID": "own", "PYTHONPATH": str(tmp_path)}
    done = warm_torch.run(["-m", "laggard", "run", str(tmp_path / "train.py")], environment)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "ranks").rglob("*.rank")
    with RankFileReader(str(path)) as file:
        assert file.facts().get(HIDDEN_WAITS, []) == told


@pytest.mark.parametrize("facts", [{}, {"hidden_waits": True}, {"hidden_waits": [1, {}]}, {"hidden_waits": "DeepEP"}])
def test_facts_of_another_kind_hide_nothing(facts: dict[str, object]) -> None:
    assert hiding_libraries(facts) == ()


def test_names_of_libraries_are_bounded() -> None:
    told = hiding_libraries({"hidden_waits": ["a\x1b" * 500] * 500})
    assert len(told) <= 16 and all(len(name) <= 64 and name.isprintable() for name in told)


class Phases:
    """Stands in for a session whose training thread is this one; `seen` are the phases that were entered and left."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.evaluates = False
        self.steps = SimpleNamespace(thread=threading.get_ident())
        self.recorder = SimpleNamespace(enter=self.seen.append, leave=lambda: self.seen.append("left"))
        self.forward = SimpleNamespace(evaluates=lambda: self.evaluates)

    def taken(self) -> list[object]:
        found = self.seen.copy()
        self.seen.clear()
        return found


class Batches:
    """Stands in for a library's own iterator: it has more than iteration, and ends."""

    fails = False

    def __init__(self) -> None:
        self.left, self.size = 2, 7

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> int:
        if self.fails:
            raise OSError("the file server is gone")
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Phases:
    """The libraries are there, each with the class and the method that is looked for, and hooked by this test alone."""
    monkeypatch.setattr(wrapping, "_acts", {})
    monkeypatch.setattr(wrapping, "_unseen", set())
    for name, path in (*((name, f"{owner}.__next__") for name, owner in NEXT_METHODS), *ITERATORS):
        owner, _, method = path.partition(".")
        module = sys.modules.get(name)
        if not isinstance(module, Library):
            monkeypatch.setitem(sys.modules, name, module := Library(name))
        kind = module.__dict__.setdefault(owner, type(owner, (), {}))
        setattr(kind, method, (lambda self: 5) if method == "__next__" else (lambda self, *_: Batches()))
    session = Phases()
    hook_calls(loader_calls(session))  # type: ignore[arg-type]
    return session


class Library(ModuleType): ...


def made(name: str, owner: str) -> Any:
    return getattr(sys.modules[name], owner)()


@pytest.mark.parametrize(("name", "owner"), NEXT_METHODS)
def test_next_of_an_iterator_is_a_wait_for_input(session: Phases, name: str, owner: str) -> None:
    assert next(made(name, owner)) == 5 and session.taken() == [INPUT, "left"]


@pytest.mark.parametrize(("name", "path"), ITERATORS)
def test_each_step_over_what_a_method_returns_is_one(session: Phases, name: str, path: str) -> None:
    owner, _, method = path.partition(".")
    found = getattr(made(name, owner), method)()
    assert found.size == 7 and session.taken() == [], "nothing is waited for yet"
    assert list(found) == [1, 0] and session.taken() == [INPUT, "left"] * 3, "the last one is told that it is over"
    assert next(getattr(made(name, owner), method)()) == 1 and session.taken() == [INPUT, "left"]


def test_in_an_evaluation_it_is_part_of_that_and_an_error_leaves_the_phase(
    session: Phases, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.evaluates = True
    found = iter(made("webdataset.pipeline", "DataPipeline"))
    assert next(found) == 1 and session.taken() == [EVALUATION, "left"]
    monkeypatch.setattr(Batches, "fails", True)
    with pytest.raises(OSError, match="gone"):
        next(found)
    assert session.taken() == [EVALUATION, "left"]


def test_other_threads_wait_for_nobody(session: Phases) -> None:
    given: list[int] = []
    loader = made("webdataset.pipeline", "DataPipeline")
    thread = threading.Thread(target=lambda: given.extend(loader))
    thread.start()
    thread.join()
    assert given == [1, 0] and session.taken() == []


def test_what_is_hooked_is_not_hooked_again(session: Phases) -> None:
    hook_calls(loader_calls(session))  # type: ignore[arg-type]
    assert next(made(*NEXT_METHODS[0])) == 5 and session.taken() == [INPUT, "left"]
