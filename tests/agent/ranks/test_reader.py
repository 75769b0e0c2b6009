"""What is read of rank files and of their processes: anew only where it changed, packed, and joined by process."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laggard.agent.ranks.reader import RankCache, RankFiles
from laggard.agent.ranks.row import ProcessInfo, read_process_info
from laggard.collector.scrape.validation import validate_ranks_answer
from laggard.wire import encode
from laggard.wire.ranks import RanksDocument


def test_what_was_read_is_shared_until_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("laggard.agent.ranks.reader.time.monotonic", lambda: now)
    documents: list[RanksDocument] = []

    def read() -> RanksDocument:
        documents.append(RanksDocument("n0", "boot", float(len(documents)), (), ()))
        return documents[-1]

    cache = RankCache(read, 0.2)
    assert documents == []  # nobody asked
    assert cache.get() is cache.get() is documents[0]
    now = 100.19
    assert cache.get() is documents[0]
    now = 100.21
    assert cache.get() is documents[1] and len(documents) == 2


Start = Callable[..., Any]


def test_columns_have_the_steps_in_the_order_of_the_ranks(rank_dir: Path, start_rank: Start) -> None:
    for rank, steps in ((3, 2), (0, 3), (1, 0)):
        start_rank(rank=rank).do(*["step"] * steps)
    files = RankFiles(str(rank_dir), "n0")
    told = validate_ranks_answer(encode(files.read(0)))
    counts = {row.rank: len(table) for row, table in zip(told.document.ranks, told.steps, strict=True)}
    assert counts == {0: 3, 1: 0, 3: 2}
    assert files.read().steps is None, "no steps were asked for"


def test_a_real_agent_packs_them(start_agent: Start, start_rank: Start) -> None:
    start_rank(rank=0).do("step", "step")
    agent = start_agent()
    steps = agent.request("/api/v1/ranks?since=0").json()["steps"]
    assert steps["counts"] == [2] and len(base64.b64decode(steps["columns"])) == 2 * sum(steps["widths"])
    assert agent.request("/api/v1/ranks").json()["steps"] is None


@pytest.mark.parametrize(
    ("groups", "cgroup"),
    [
        ("0::/user.slice/session-1.scope\n", "/user.slice/session-1.scope"),
        ("0::/\n", ""),
        ("4:memory:/slurm/uid_0/job_7\n2:cpu:/\n0::/\n", "/slurm/uid_0/job_7"),
        ("0::/a:b\x1b\n", "/a:b?"),
        ("nonsense\n", ""),
        ("0::/" + "x" * 5000 + "\n", "/" + "x" * 511),
    ],
)
def test_what_the_kernel_knows_of_a_process(tmp_path: Path, groups: str, cgroup: str) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "status").write_text("Name:\tUid: 1 2 3\nUid:\t1000\t1001\t1002\t1003\nGid:\t1\t1\t1\t1\n")
    (tmp_path / "5" / "cgroup").write_text(groups)
    assert read_process_info(5, str(tmp_path)) == ProcessInfo((1000, 1001), cgroup)
    assert read_process_info(6, str(tmp_path)) is None
