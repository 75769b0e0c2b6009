"""One real DeepSpeed job that is slow, stands still and dies, from the hooks in its ranks to the page in a browser."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browsing import Browsed, needs_chromium
from support.cluster import Cluster
from support.warm import Warm

pytestmark = [pytest.mark.spine, needs_chromium]
LIMIT_SECONDS = 300.0


@pytest.fixture
def cluster(tmp_path: Path, warm_deepspeed: Warm) -> Iterator[Cluster]:
    made = Cluster(tmp_path, warm_deepspeed, interval="1")
    yield made
    made.end()


def _until_page_says(cluster: Cluster, page: Any, words: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not page.inner_text("h1").startswith(words):
        cluster.location()  # makes a round, so that nothing waits for the interval
        assert time.monotonic() < deadline, page.inner_text("#answer")
        page.wait_for_timeout(200)


def test_the_page_names_who_is_slow_who_hangs_and_who_died_first(
    cluster: Cluster, browser: Any, tmp_path: Path
) -> None:
    slow = ("--steps", "100000", "--slow-rank", "1", "--slow-phase", "forward", "--slow-by", "0.2")
    recording = tmp_path / "recording"
    ranks = cluster.train(3, *slow, extra={"LAGGARD_RECORD_DIR": str(recording)})
    cluster.until_rows(lambda rows: len(rows) == 3 and all(row["steps"] > 2 for row in rows))
    browsed = Browsed(browser, f"{cluster.collector}/", ready="#answer")

    _until_page_says(cluster, browsed.page, "Rank 1 on n0 is slow in forward")
    ranks[2].send_signal(signal.SIGSTOP)
    _until_page_says(cluster, browsed.page, "Rank 2 on n0 is hung")
    ranks[2].send_signal(signal.SIGKILL)
    _until_page_says(cluster, browsed.page, "Rank 2 on n0 died first")

    assert [rank.wait(LIMIT_SECONDS) for rank in ranks[:2]] == [1, 1], "gloo fails in those whose peer is gone"
    assert browsed.errors == []
    said = cluster.locate_trace(recording)
    assert said.returncode == 1 and said.stdout.startswith("Rank 2 on "), said.stdout
    assert "Before that, rank 1 was slow in forward" in said.stdout, said.stdout
    assert "The recording of rank 2 has no end: its process was killed" in said.stdout, said.stdout
