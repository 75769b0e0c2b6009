"""Libraries whose kernels wait by themselves: a rank that uses one says so, one that imports it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.warm import Warm

from laggard.locate.job_timings import hiding_libraries
from laggard.rankfile import RankFileReader
from laggard.rankfile.fact_names import HIDDEN_WAITS

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
