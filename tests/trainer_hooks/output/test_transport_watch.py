"""The rank reports its NCCL's transports now and then, and leaves nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.nccl_logs import log_text

from laggard.kit.environment import ENV_NCCL_LOG
from laggard.nccl.private_log import loaded_version
from laggard.nccl.transport import Transport
from laggard.trainer_hooks.output.run_environment import TransportWatch
from laggard.trainer_hooks.record.ending import Facts


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TransportWatch, Facts]:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", ENV_NCCL_LOG):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that monkeypatch removes what prepare() sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAGGARD_RANK_DIR", str(tmp_path / "ranks"))
    facts = Facts()
    watch = TransportWatch(facts)
    watch.prepare()
    return watch, facts


def beats(watch: TransportWatch, count: int) -> None:
    for _ in range(count):
        watch.beat()


def test_what_nccl_logs_is_reported(prepared: tuple[TransportWatch, Facts]) -> None:
    watch, facts = prepared
    path = Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())))
    beats(watch, 1)
    before = json.loads(facts.changed_json() or b"{}").get("transport", {})
    assert before.get("log") != "read", "NCCL has logged nothing yet"
    path.write_text(log_text("tcp_no_libibverbs"))
    beats(watch, 15)
    reported = json.loads(facts.changed_json() or b"{}")["transport"]
    assert Transport.from_json(json.dumps(reported)).process.connections
    watch.close()
    assert not path.parent.exists()


def test_a_process_without_nccl_is_soon_no_longer_checked(prepared: tuple[TransportWatch, Facts]) -> None:
    if loaded_version("/proc/self"):
        pytest.skip("a test before this one has imported a torch that loads NCCL")
    watch, facts = prepared
    beats(watch, 500)
    path = Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())))
    path.write_text(log_text("tcp_no_libibverbs"))
    beats(watch, 100)
    assert facts.changed_json() in (None, b"{}")
    watch.close()


def test_the_users_log_settings_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_NCCL_LOG, raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    watch = TransportWatch(Facts())
    watch.prepare()
    assert os.environ["NCCL_DEBUG"] == "WARN" and "NCCL_DEBUG_FILE" not in os.environ
    beats(watch, 20)
    watch.close()
