"""What the Flight Recorder holds, less what the hooks saw, is what C++ made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.rankfile import RankFileReader
from laggard.rankfile.fact_names import RECORDER_OFF, RECORDER_SMALL, UNNAMED_COLLECTIVES
from laggard.trainer_hooks.collectives.flight_recorder_entries import RecordedCollective, without_known

TRAINING = """
import socket, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"tcp://127.0.0.1:{port}")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(6):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
time.sleep(2)  # for a heartbeat
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
def test_a_rank_reports_why_it_cannot_name_collectives_of_cpp(size: str, reason: str | None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    environment = {"LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "laggard", "run", str(script)],
        env={**os.environ, **environment, "TORCH_FR_BUFFER_SIZE": size},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "ranks").glob("*.rank")
    with RankFileReader(str(path)) as file:
        counters = file.counters()
        assert file.facts().get(UNNAMED_COLLECTIVES) == reason
        assert counters is not None and bool(counters.lost) == (reason is not None)
    assert done.stderr.count("are not recorded") == (reason is not None), "logged once"
