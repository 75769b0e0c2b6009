"""What a rank keeps of a standstill: its own files, what NCCL RAS tells, and who beside it can write nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agents import RankProcess
from support.fake_ras import FakeCommunicator, FakeRank, FakeRas
from support.stack_documents import sampled
from support.waiting import wait_for

from laggard.cli import main
from laggard.rankfile import RankFileReader
from laggard.stacks.fault_text import header
from laggard.stacks.kernel_side import decode
from laggard.stacks.sampled import STALLED
from laggard.trainer_hooks.output.hang_folder import MAX_FOLDERS, RAS_REPORT, HangFolder, own_report

Ras = Callable[..., FakeRas]


@pytest.fixture
def ras(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ras]:
    """A stand-in for the RAS of a job of this process, at an address that NCCL_RAS_ADDR names."""
    started: list[FakeRas] = []

    def start(pid: int = 0, **how: Any) -> FakeRas:
        ranks = [FakeRank(rank, pid=(pid or os.getpid()) + rank, missing=rank == 2) for rank in range(4)]
        started.append(FakeRas([FakeCommunicator(ranks)], **how))
        monkeypatch.setenv("NCCL_RAS_ADDR", f"localhost:{started[-1].port}")
        return started[-1]

    yield start
    for each in started:
        each.close()


def keep(base: Path, step: int = 7, rank_file: Path | None = None, stalled_seconds: float = 31.0) -> Path:
    """Returns the folder in which rank 0 kept what it knows."""
    events = {"laggard_events": 1, "step": step, "phase": "backward", "lanes": []}
    folder = HangFolder(str(base), 0, lambda: events, None if rank_file is None else str(rank_file))
    folder.keep(sampled(0, why=STALLED, stalled_seconds=stalled_seconds))
    (found,) = base.glob("hang-*")
    return found


def test_what_ras_tells_is_kept_and_read(tmp_path: Path, ras: Ras, capsys: pytest.CaptureFixture[str]) -> None:
    server = ras()
    folder = keep(tmp_path)
    wait_for((folder / RAS_REPORT).exists)
    assert (folder / RAS_REPORT).stat().st_mode & 0o077 == 0
    assert main(["diagnose", str(folder)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "Rank 2" in told and "does not answer RAS" in told, told
    asked = len(server.commands)
    assert keep(tmp_path) == folder
    time.sleep(0.2)
    assert len(server.commands) == asked, "the rank that finds the folder asks nobody"


@pytest.fixture
def hang_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of all users, as /scratch."""
    base = tmp_path / "scratch"
    base.mkdir()
    base.chmod(0o1777)
    monkeypatch.setenv("LAGGARD_HANG_DIR", str(base))
    return base


def kept_by(job: str, rank: int) -> None:
    told = sampled(rank, why=STALLED, stalled_seconds=31.0)
    HangFolder(None, rank, dict).keep(told._replace(job_id=job))


def test_each_job_of_a_user_has_a_folder_of_its_own(hang_dir: Path) -> None:
    for job, rank in (("a", 0), ("a", 1), ("../b", 0)):
        kept_by(job, rank)
    own = hang_dir / str(os.geteuid())
    found = {
        path.parent.parent.name: {each.name for each in path.parent.glob("*.stacks")} for path in own.rglob("*.stacks")
    }
    assert found == {"job-a": {"rank-0.stacks", "rank-1.stacks"}, "job-..%2Fb": {"rank-0.stacks"}}
    assert all(path.stat().st_mode & 0o077 == 0 for path in own.rglob("*")) and own.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("taken", ["theirs", "link", "open"])
def test_a_folder_that_somebody_else_may_write_to_keeps_nothing(hang_dir: Path, tmp_path: Path, taken: str) -> None:
    own = hang_dir / str(os.geteuid())
    if taken == "link":
        (tmp_path / "elsewhere").mkdir()
        own.symlink_to(tmp_path / "elsewhere")
    else:
        own.mkdir()
        own.chmod(0o777)
    if taken == "theirs":
        if os.geteuid() != 0:
            pytest.skip("needs root: it gives a folder away")
        own.chmod(0o755)
        os.chown(own, 12345, 12345)
    with pytest.raises(PermissionError, match="not this user's alone"):
        kept_by("a", 0)
    assert not [*own.rglob("*.stacks")]


def test_of_a_job_that_stands_still_again_and_again_so_many_are_kept_and_one_line_says_so(
    hang_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = hang_dir / str(os.geteuid()) / "job-a"
    kept_by("a", 0)
    for number in range(MAX_FOLDERS):
        (place / f"hang-2020010{number + 1}T000000Z").mkdir(0o700)
        os.utime(place / f"hang-2020010{number + 1}T000000Z", (0, 0))
    (first,) = (path for path in place.glob("hang-*") if not path.name.startswith("hang-2020"))
    for each in first.iterdir():
        each.unlink()
    first.rmdir()
    kept_by("a", 0)
    assert not [*place.rglob("*.stacks")] and "remove what is read" in caplog.text
    kept_by("b", 0)
    assert [*place.parent.rglob("*.stacks")], "another job has room of its own"


def test_nccl_is_not_asked_before_the_first_step(tmp_path: Path, ras: Ras) -> None:
    server = ras()
    folder = keep(tmp_path, step=0)
    time.sleep(0.2)
    assert not server.commands and not (folder / RAS_REPORT).exists()


def test_an_answer_about_another_job_is_none(ras: Ras) -> None:
    server = ras(pid=1)
    assert own_report(os.environ) == b"" and server.commands.count("STATUS") == 2


def test_an_older_nccl_is_not_asked_for_its_status(ras: Ras) -> None:
    server = ras(nccl=(2, 27, 7))
    assert own_report(os.environ) == b"" and "STATUS" not in server.commands


def test_a_port_at_which_another_user_listens_is_not_asked(tmp_path: Path, ras: Ras) -> None:
    server = ras()
    table = tmp_path / "tcp"
    row = "   0: 0100007F:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {:5d} 0 1 1 x 100 0 0 10 0\n"
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    table.write_text(head + row.format(server.port, os.geteuid()))
    assert b'"communicators"' in own_report(os.environ, (str(table),))
    table.write_text(head + row.format(server.port, os.geteuid()) + row.format(server.port, os.geteuid() + 1))
    asked = len(server.commands)
    assert own_report(os.environ, (str(table),)) == b"" and len(server.commands) == asked
    table.write_text(head + row.format(server.port + 1, os.geteuid()) + "garbage\n \n")
    assert own_report(os.environ, (str(table), "/nowhere")) == b""


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:x")
    assert own_report({"NCCL_RAS_ADDR": "[::1]:9"}) == b""


def test_a_rank_that_is_stopped_is_seen_by_the_one_beside_it(
    tmp_path: Path, rank_dir: Path, start_rank: Callable[..., RankProcess]
) -> None:
    ranks = [start_rank(rank=rank, directory=rank_dir) for rank in (0, 1, 2)]
    start_rank(rank=3, directory=rank_dir, job_id="another").process.send_signal(signal.SIGSTOP)
    for rank in ranks:
        rank.do("beat")
    ranks[2].process.send_signal(signal.SIGSTOP)
    own = rank_dir / "own.rank"

    def kept() -> Path:
        return keep(tmp_path / "kept", rank_file=own, stalled_seconds=0.0)

    wait_for(lambda: (kept() / "rank-2.kernel").exists())
    folder = kept()
    files = {file.name for file in folder.glob("*.kernel")}
    assert files <= {"rank-1.kernel", "rank-2.kernel"}, "rank 1 may be late with its next beat; the others do not count"
    seen = decode((folder / "rank-2.kernel").read_bytes())
    assert (seen.rank, seen.pid, seen.side.state) == (2, ranks[2].process.pid, "T")
    assert keep(tmp_path / "moved", rank_file=own, stalled_seconds=3600.0).is_dir()
    assert not list((tmp_path / "moved").glob("*/*.kernel")), "it has moved since this one began to wait"


def test_a_rank_that_looks_at_those_beside_it_keeps_the_lock_on_its_own_file(
    rank_dir: Path, start_rank: Callable[..., RankProcess]
) -> None:
    """The lock is how the agent knows that a rank lives; the kernel takes it from a process that closes the file."""
    rank = start_rank(rank=0, directory=rank_dir)
    rank.do("beat", "look")
    with RankFileReader(str(rank.path)) as file:
        assert file.lock_holder() == rank.process.pid


def test_the_lines_that_were_written_for_a_silent_rank_are_kept(
    tmp_path: Path, rank_dir: Path, start_rank: Callable[..., RankProcess]
) -> None:
    """faulthandler has written them into its recording; the agent reads beside its rank file, a person the folder."""
    rank = start_rank(rank=1, directory=rank_dir, world_size=2)
    rank.do("beat")
    rank.process.send_signal(signal.SIGSTOP)
    recorded = tmp_path / "recorded-1.fault"

    def recorded_base(number: int) -> str:
        return str(tmp_path / f"recorded-{number}")

    frames = '  File "/job/native.py", line 16 in calibrate\n  File "/job/train.py", line 9 in <module>\n'
    dump = f"Timeout (0:00:04)!\nThread 0x0000000000000007 (most recent call first):\n{frames}"
    recorded.write_bytes(header("test", 1, "n0", rank.process.pid, 7) + dump.encode())
    os.utime(recorded, (1000.0, 1000.0))

    def kept() -> Path:
        place = HangFolder(str(tmp_path / "kept"), 0, dict, str(rank_dir / "own.rank"), recorded_base)
        place.keep(sampled(0, why=STALLED, stalled_seconds=0.0))
        (folder,) = (tmp_path / "kept").glob("hang-*")
        return folder

    wait_for(lambda: (kept() / "rank-1.fault").exists())
    folder = kept()
    beside = rank.path.with_suffix(".fault")
    for copy in (folder / "rank-1.fault", beside):
        assert copy.read_bytes() == recorded.read_bytes() and copy.stat().st_mtime == 1000.0
        assert copy.stat().st_mode & 0o077 == 0
