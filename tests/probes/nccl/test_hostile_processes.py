"""What a user can do to the probe nccl_env by the processes that they start: nothing that costs another user's."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from laggard.cli import main
from laggard.collector.scrape.validation import validate_report
from laggard.probes.host.host import Host
from laggard.probes.nccl.model import running_ranks
from laggard.probes.nccl.model.running_ranks import RankProcess, read_own_rank_processes

pytestmark = pytest.mark.usefixtures("without_processes")

NOBODY, OTHER = 65534, 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture
def held() -> Iterator[Path]:
    """A file that makes the process that holds it a rank."""
    folder = Path("/dev/shm/laggard")
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    file = folder / f"test-{os.getpid()}"
    file.touch()
    file.chmod(0o666)
    yield file
    file.unlink()
    if made:
        folder.rmdir()


@pytest.fixture
def start(held: Path) -> Iterator[Callable[..., int]]:
    """Starts a process with these variables; returns its pid."""
    started: list[subprocess.Popen[bytes]] = []

    def run(environment: Mapping[str, str], user: int | None = None) -> int:
        words = ["/bin/sh", "-c", f"exec 9<{held}; echo ready; exec sleep 600"]
        environment = {"PATH": "/bin:/usr/bin", **environment}
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, user=user)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":  # meanwhile its environment is empty
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return process.pid

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ranks(pids: set[int], seconds: float = 60.0) -> dict[int, RankProcess]:
    return {it.pid: it for it in read_own_rank_processes(Host(), seconds=seconds).processes if it.pid in pids}


def test_a_fifo_as_settings_file_holds_nobody_up(start: Callable[..., int], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    hostile = start({"NCCL_CONF_FILE": str(tmp_path / "fifo")})
    honest = start({"NCCL_ALGO": "Ring"})
    found: list[dict[int, RankProcess]] = []
    thread = threading.Thread(target=lambda: found.append(ranks({hostile, honest})), daemon=True)
    thread.start()
    thread.join(120)
    assert found and found[0][honest].environment == {"NCCL_ALGO": "Ring"}
    assert found[0][hostile].conf.settings == {}


@as_root
def test_a_settings_file_is_read_with_its_users_rights_alone(start: Callable[..., int], tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o011)
    secret, own = tmp_path / "secret", tmp_path / "own"
    for file in (secret, own):
        file.write_text("NCCL_ALGO=Tree\n")
    secret.chmod(0o600)
    own.chmod(0o600)
    os.chown(own, NOBODY, NOBODY)
    device = start({"NCCL_CONF_FILE": "/dev/zero"}, NOBODY)
    kernels = start({"NCCL_CONF_FILE": "/proc/1/environ"}, NOBODY)
    stranger = start({"NCCL_CONF_FILE": str(secret)}, NOBODY)
    owner = start({"NCCL_CONF_FILE": str(own)}, NOBODY)
    another = start({"NCCL_CONF_FILE": str(own)}, OTHER)
    found = ranks({device, kernels, stranger, owner, another})
    assert {pid: dict(it.conf.settings) for pid, it in found.items()} == {
        device: {},
        kernels: {},
        stranger: {},
        owner: {"NCCL_ALGO": "Tree"},
        another: {},
    }


def test_of_a_settings_file_no_more_is_told_than_of_an_environment(start: Callable[..., int], tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    lines = [f"NCCL_LINE_{number} = x" for number in range(10_000)]
    conf.write_text("\n".join(["NCCL_SESSION_PASSWORD=sentinel", "MY_NCCL_TOKEN=sentinel", "NCCL_ALGO=Ring", *lines]))
    pid = start({"NCCL_CONF_FILE": str(conf)})
    (rank,) = ranks({pid}).values()
    assert rank.conf.settings == {"NCCL_ALGO": "Ring", "NCCL_SESSION_PASSWORD": ""}
    assert "sentinel" not in repr(rank) and len(repr(rank)) < 10_000


def test_one_users_processes_do_not_push_out_anothers(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {f"NCCL_A{number}": "" for number in range(5_000)}
    flood = [start(large) for _ in range(4)]
    honest = start({"NCCL_ALGO": "Ring"})
    monkeypatch.setattr(Host, "process_user", lambda self, pid: "1" if int(pid) == honest else "2")
    monkeypatch.setattr(running_ranks, "_MAX_CHARACTERS", 40_000)
    found = read_own_rank_processes(Host(), seconds=60.0)
    own = {it.pid: it for it in found.processes if it.pid in (honest, *flood)}
    assert own[honest].environment == {"NCCL_ALGO": "Ring"}
    assert 1 < len(own) < 5 and found.left_out >= 1
    assert all(sum(map(len, it.environment)) <= 16_384 for it in own.values())


def test_the_processes_get_no_more_than_their_time(start: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    pids = {start({"NCCL_ALGO": "Ring"}) for _ in range(3)}

    def slow(host: Host, pid: str, read: Any) -> None:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:  # it works, and so it is not taken for one that came to a stop
            pass

    monkeypatch.setattr(running_ranks, "_rank_process", slow)
    found = read_own_rank_processes(Host(), seconds=0.2)
    assert found.left_out >= len(pids) - 1, "time was left for one at most"


def test_where_processes_were_left_out_the_answer_is_unknown(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine_of(copy_of("hgx_h100"), [{"NCCL_ALGO": "Ring"}] * 3)
    assert report_of(root, capsys)[1]["probes"][0]["verdict"] == "ok"
    monkeypatch.setattr(running_ranks, "_MAX_CHARACTERS", 20)
    (probe,) = report_of(root, capsys)[1]["probes"]
    assert (probe["verdict"], probe["reason"]) == ("unknown", "there was no time or room for 2 processes")


def test_a_path_of_many_folders_is_looked_at_once() -> None:
    line = f"7f00-7f01 r--p 0000 00:01 1 /dev/shm{'/a' * 2000}/x\n"
    began = time.thread_time()
    assert running_ranks._library(line * 1000) == ("", "")
    assert time.thread_time() - began < 5  # 26 s where each folder begins a search of its own


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/env/lib/libnccl.so.2", ("/env/lib", "")),
        ("/env/lib/libnccl.so.2.27.5", ("/env/lib", "2.27.5")),
        ("/env/lib/libnccl.so.2.27.5 (deleted)", ("/env/lib", "2.27.5")),
        (f"/env/lib/libnccl.so.{'9' * 200}.1.1", ("", "")),
        ("/env/libnccl.so/other", ("", "")),
    ],
)
def test_the_library_is_known_by_its_path(path: str, found: tuple[str, str]) -> None:
    assert running_ranks._library(f"7f00-7f01 r-xp 0000 fd:00 131 {path}\n") == found


def machine_of(root: Path, environments: list[dict[str, str]]) -> Path:
    for number, environment in enumerate(environments):
        place = root / f"proc/{5000 + number}"
        (place / "fd").mkdir(parents=True)
        (place / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in environment.items()))
        (place / "fd/9").symlink_to(f"/dev/shm/laggard/job-1.{number}")
    return root


def report_of(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[bytes, dict[str, Any]]:
    main(["healthcheck", "--host-root", str(root), "--only", "nccl_env", "--format", "json"])
    out = capsys.readouterr().out
    return out.encode(), dict(json.loads(out))


@pytest.mark.parametrize(
    "environments",
    [
        [{f"NCCL_A{number}": "1" for number in range(1500)}],
        [{"NCCL_ALGO": "A" * 4096, "NCCL_PROTO": "B" * 4096}],
        [{"NCCL_ALGO": f"A{number}"} for number in range(700)],
        [{"NCCL_CONF_FILE": "/conf/" + "d" * 200}],
    ],
    ids=["names", "values", "processes", "path"],
)
def test_no_environment_makes_a_report_that_a_collector_refuses(
    environments: list[dict[str, str]], copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = machine_of(copy_of("hgx_h100"), environments)
    conf = root / "proc/5000/root/conf"
    conf.mkdir(parents=True)
    (conf / ("d" * 200)).write_text("NCCL_ALGO = Ring\n")
    body, report = report_of(root, capsys)
    assert validate_report(body).findings and report["probes"][0]["verdict"] == "ok"
    assert len(report["findings"]) <= 64


def test_what_a_job_sets_is_critical_to_no_node(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else any user of a node could have it drained or tainted."""
    root = machine_of(copy_of("hgx_h100"), [{"NCCL_P2P_DISABLE": "1"}])
    (found,) = report_of(root, capsys)[1]["findings"]
    assert (found["device"], found["severity"]) == ("NCCL_P2P_DISABLE", "warning")
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/nccl.conf").write_text("NCCL_P2P_DISABLE=1\n")
    (found,) = report_of(root, capsys)[1]["findings"]
    assert (found["device"], found["severity"]) == ("NCCL_P2P_DISABLE", "critical")
