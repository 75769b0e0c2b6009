"""The culprit's line in W&B, TensorBoard and MLflow: asked of a collector by a thread beside the training."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fronts import served_by
from support.waiting import wait_for

from laggard.collector.web.documents import SummaryDocument
from laggard.kit.environment import ENV_COLLECTOR, ENV_JOB_ID, ENV_OFF
from laggard.model import Culprit, CulpritStack, Location, Verdict, Window
from laggard.trainer_hooks import culprit
from laggard.trainer_hooks.culprit import KEY, NO_LONGER, TAG, line_of, running_tools, tell_culprit
from laggard.wire import encode

STACK = CulpritStack("forward: 71 % of the samples in tokenize (data.py:88)", "tokenize (data.py:88)", 2, ())
LINE = "Rank 2 on n7 is slow. In the code: forward: 71 % of the samples in tokenize (data.py:88)."
MISSING = "needs the test group `reporting` (pip install --group reporting)"


def summary(*culprits: Culprit, sentence: str = "Rank 2 on n7 is slow.") -> bytes:
    verdict = Verdict.FAIL if culprits else Verdict.OK
    location = Location(verdict, "j", 4, 4, Window(), None, culprits, ())
    return encode(SummaryDocument("1", 1.0, 5.0, sentence, (), (), "0:j", (), location))


SLOW = summary(Culprit("slow_host", (2,), node="n7", stack=STACK))


class Collector:
    """A stand-in for a collector, which answers `body` about the job `j` of this user, and keeps what it was asked."""

    def __init__(self) -> None:
        self.body, self.asked = SLOW, [""]

    def reply(self, path: str, *_: Any) -> tuple[int, bytes]:
        self.asked.append(path)
        return 200 if f"job={os.geteuid()}%3Aj" in path else 404, self.body


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    started = Collector()
    monkeypatch.setenv(ENV_JOB_ID, "j")
    monkeypatch.setattr(culprit, "ASK_SECONDS", 0.05)
    watches: list[culprit.CulpritWatch] = []
    start = culprit.CulpritWatch.start
    monkeypatch.setattr(culprit.CulpritWatch, "start", lambda it: (watches.append(it), start(it))[1])
    with served_by(started.reply) as url:
        monkeypatch.setenv(ENV_COLLECTOR, url.removeprefix("http://"))
        yield started
        for watch in watches:
            watch.stop()


class Writer:
    """A stand-in for a SummaryWriter of TensorBoard."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, int]] = []

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.texts.append((tag, text, step))


def test_a_culprit_is_told_once_and_its_end_too(collector: Collector) -> None:
    writer = Writer()
    assert tell_culprit(writer)
    wait_for(lambda: len(collector.asked) > 4)
    assert writer.texts == [(KEY, f"    {LINE}", 0)]
    assert collector.asked[1] == f"/api/v1/summary?limit=0&job={os.geteuid()}%3Aj", "its name alone goes out"
    collector.body = summary()
    wait_for(lambda: len(writer.texts) > 1)
    assert writer.texts[1:] == [(KEY, f"    {NO_LONGER}", 0)]


def test_nobody_is_told_that_nobody_is_slow(collector: Collector) -> None:
    collector.body = summary()
    writer = Writer()
    assert tell_culprit(writer)
    wait_for(lambda: len(collector.asked) > 4)
    assert not writer.texts


@pytest.mark.parametrize("body", [b"", b"{}", b"[", b"<html>", b'{"location": {"culprits": [3]}, "sentence": 1}'])
def test_an_answer_that_is_none_is_told_to_nobody(collector: Collector, body: bytes) -> None:
    collector.body = body
    writer = Writer()
    assert tell_culprit(writer)
    wait_for(lambda: len(collector.asked) > 4)
    collector.body = SLOW
    wait_for(lambda: writer.texts)
    assert writer.texts == [(KEY, f"    {LINE}", 0)], "it goes on asking"


def test_the_caller_waits_for_no_collector(collector: Collector) -> None:
    held = threading.Event()

    class Slow(Writer):
        def add_text(self, tag: str, text: str, step: int) -> None:
            held.wait(120)
            super().add_text(tag, text, step)

    writer = Slow()
    assert tell_culprit(writer), "it returned while the tool was not done"
    held.set()
    wait_for(lambda: writer.texts)


def test_a_tool_that_fails_hides_nothing_from_the_others(collector: Collector) -> None:
    class Failing(Writer):
        def add_text(self, tag: str, text: str, step: int) -> None:
            raise RuntimeError

    writer = Writer()
    assert tell_culprit(Failing(), writer)
    wait_for(lambda: writer.texts)


def test_without_collector_or_tool_nobody_is_asked(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tell_culprit() and not tell_culprit(object(), None, 3)
    monkeypatch.setenv(ENV_OFF, "1")
    assert not tell_culprit(Writer())
    monkeypatch.delenv(ENV_OFF)
    monkeypatch.delenv(ENV_COLLECTOR)
    assert not tell_culprit(Writer())
    assert collector.asked == [""]


def test_a_long_or_odd_line_is_bounded() -> None:
    told = line_of(json.loads(summary(Culprit("hung", (1,)), sentence="a\n\x1b[31m" + "b" * 1000)))
    assert len(told) == culprit.MAX_TEXT and told.startswith("a??[31mbbb")


def test_the_callback_of_hugging_face_tells_the_first_rank_alone(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    from laggard.trainer_hooks import huggingface
    from laggard.trainer_hooks.huggingface import LaggardCallback

    monkeypatch.setattr(huggingface, "install_import_hooks", lambda: None)  # they would stay for this process's life
    other, first = Writer(), Writer()
    LaggardCallback(tell=[other]).on_train_begin(None, SimpleNamespace(is_world_process_zero=False), None)
    callback = LaggardCallback(tell=[first])
    for _ in range(2):
        callback.on_train_begin(None, SimpleNamespace(is_world_process_zero=True), None)
    wait_for(lambda: first.texts)
    wait_for(lambda: len(collector.asked) > 4)
    assert len(first.texts) == 1 and not other.texts


@pytest.mark.slow  # imports Lightning
def test_lightnings_loggers_are_told() -> None:
    """Stand-ins for Lightning's loggers: one of TensorBoard, one of MLflow, one that fails."""
    from laggard.trainer_hooks.lightning import _tools

    class Failing:
        @property
        def experiment(self) -> None:
            raise RuntimeError

    writer, run = Writer(), SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    client = SimpleNamespace(get_run={"r1": run}.__getitem__)
    loggers = [SimpleNamespace(experiment=writer), Failing(), SimpleNamespace(experiment=client, run_id="r1")]
    assert list(_tools(loggers)) == [writer, run]


def test_tensorboard_shows_it(collector: Collector, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=MISSING)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        assert tell_culprit(writer)
        found: list[Any] = []

        def is_there() -> bool:
            writer.flush()
            events = EventAccumulator(str(tmp_path))
            events.Reload()
            found[:] = [events.Tensors(tag) for tag in events.Tags()["tensors"] if tag.startswith(KEY)]
            return bool(found)

        wait_for(is_there)
    assert found[0][0].tensor_proto.string_val == [f"    {LINE}".encode()]


def test_weights_and_biases_have_it_in_the_runs_summary(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason=MISSING)
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="p", mode="offline", dir=str(tmp_path))
    try:
        assert running_tools() == [run]
        assert tell_culprit(*running_tools())
        wait_for(lambda: run.summary.get(KEY))
        assert run.summary[KEY] == LINE
        run.log({"loss": 1.0})
        assert run.step == 1, "no step was counted beside the script's own"
    finally:
        run.finish()


def test_mlflow_has_it_as_a_tag(collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason=MISSING)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its database needs more packages
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        assert [tool.info.run_id for tool in running_tools()] == [run.info.run_id]
        assert tell_culprit(*running_tools())
        wait_for(lambda: TAG in mlflow.get_run(run.info.run_id).data.tags)
    assert mlflow.get_run(run.info.run_id).data.tags[TAG] == LINE
