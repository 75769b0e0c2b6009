"""`laggard diagnose FOLDER`: one answer from the files of a job, and bounds on what a folder may hold."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.diagnosed import answer, answer_in_words
from support.paths import DATA

JOB_FOLDERS = DATA / "job_folders"
"""Folders of what real jobs left: four ranks under torchrun with gloo, on one host or on two network namespaces, each
with a fault that was planted. `files/` is the folder, `expect.json` what is to be answered."""


def folder_expectations() -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(JOB_FOLDERS.glob("*/expect.json"))}


def files_of(name: str) -> Path:
    return JOB_FOLDERS / name / "files"


GLOO = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete\n"
)
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:14256\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 29, in <module>\n    loss.backward()\n'
STEPS = "".join(f"step {number} loss 0.{number}\n" for number in range(8))
KILLED = (
    "2026-11-26T05:17:21,608000+00:00 python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n"
    "2026-11-26T05:17:21,610000+00:00 Out of memory: Killed process 3707 (python) total-vm:98765432kB\n"
)
XID = "Nov 26 05:17:20 n2 kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=3707, GPU has fallen off the bus.\n"


def box(rank: int, host: str, status: int, pid: int, first: bool = True) -> str:
    """A launcher's table of failures with one row."""
    head = "Root Cause (first observed failure):\n[0]:\n" if first else "Failures:\n[1]:\n"
    return (
        f"{head}  time      : 2026-11-26_05:17:22\n  host      : {host}\n"
        f"  rank      : {rank} (local_rank: {rank % 2})\n"
        f"  exitcode  : {status} (pid: {pid})\n"
    )


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", folder_expectations())
def test_what_a_real_job_left_is_judged_as_expected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = folder_expectations()[name]
    status, document = answer(capsys, files_of(name))
    joined, first = document["joined"], document["findings"][0]
    assert (first["code"], first["device"]) == (expected["code"], expected["device"])
    assert (status, joined["ranks"], joined["host"]) == (1, expected["ranks"], expected["host"])
    assert all(Path(line["path"]).read_text().splitlines()[line["line"] - 1] for line in joined["timeline"])


def test_without_a_tools_word_the_network_between_the_hosts_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(files_of("link_lost"), tmp_path / "job", ignore=shutil.ignore_patterns("ip_link.txt"))
    assert answer_in_words(capsys, tmp_path / "job")[1].startswith(
        "The network between host-a and host-b carried nothing"
    )


def test_ranks_of_many_large_files_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After some files of one kind the next is not searched for others; its last lines count all the same."""
    steps = "".join(
        f"iteration {number} | lm loss: 2.{number} | elapsed time (ms): 8{number}\n" for number in range(900)
    )
    put(
        tmp_path, {f"rank{rank}.log": steps + (TRACEBACK + GLOO if rank != 7 else "") + f"{rank}" for rank in range(80)}
    )
    _, document = answer(capsys, tmp_path)
    assert document["joined"]["ranks"] == [7] and "ranks 0-6 and 8-79" in document["joined"]["answer"]


def test_a_rank_without_a_word_is_the_one_that_hung(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, {f"rank{rank}.log": STEPS + (TRACEBACK + GLOO if rank != 2 else "") for rank in range(4)})
    _, text = answer_in_words(capsys, tmp_path)
    assert text.startswith("Rank 2 hung or was lost: its log ends without an error, while ranks 0-1 and 3 waited")
    assert "rank2.log:8 (rank 2): step 7 loss 0.7" in text


def test_files_of_the_same_content_are_read_once_and_count_for_each_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {f"rank{rank}.log": STEPS + (TRACEBACK + GLOO if rank != 2 else "") for rank in range(4)})
    _, document = answer(capsys, tmp_path)
    assert len(document["files"]) == 2 and "same content" in document["notes"][0]
    assert document["joined"]["ranks"] == [2] and "ranks 0-1 and 3" in document["joined"]["answer"]


def test_the_kernels_kill_explains_the_death_of_a_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(
        tmp_path,
        {
            "n1/launcher.log": box(0, "n1", 1, 3601),
            "n1/rank0.log": STEPS + TRACEBACK + CLOSED,
            "n2/launcher.log": box(2, "n2", -9, 3707),
            "n2/rank2.log": STEPS,
            "n2/dmesg.txt": KILLED,
        },
    )
    _, text = answer_in_words(capsys, tmp_path)
    assert text.startswith("Rank 2 on n2 was killed by the kernel: its host was out of memory (python)")
    assert "n2/dmesg.txt:2" in text and text.index("n2/dmesg.txt:2") < text.index("n1/rank0.log")


def test_the_kill_that_a_shell_reports_is_that_of_the_rank_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {f"rank{rank}.log": STEPS + (TRACEBACK + CLOSED if rank != 2 else "") for rank in range(4)})
    put(tmp_path, {"out.txt": "run.sh: line 7: 15518 Killed                  RANK=$r python train.py > rank$r.log\n"})
    _, text = answer_in_words(capsys, tmp_path)
    assert text.startswith("Rank 2 failed first: a process was killed (SIGKILL)") and "out.txt:1" in text


def test_the_kernels_kill_is_that_of_the_rank_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {f"rank{rank}.log": STEPS + (TRACEBACK + CLOSED if rank != 2 else "") for rank in range(4)})
    put(tmp_path, {"dmesg.txt": KILLED})
    _, text = answer_in_words(capsys, tmp_path)
    assert text.startswith("Rank 2 was killed by the kernel: its host was out of memory (python)")


def test_a_kill_on_another_host_explains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, {"n1/dmesg.txt": KILLED, "n2/launcher.log": box(2, "n2", -9, 4000), "n2/rank2.log": STEPS})
    status, document = answer(capsys, tmp_path)
    assert (status, document["findings"][0]["code"]) == (1, "JOB_KILLED")
    assert [found["code"] for found in document["findings"][1:]] == ["JOB_HOST_OUT_OF_MEMORY"]


def test_hardware_stands_before_those_that_waited_for_its_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock of n2 stands five hours later than that of n1: causes order what clocks do not."""
    put(
        tmp_path,
        {
            "n1/rank0.log": "2026-11-26 00:17:40 start\n" + STEPS + TRACEBACK + GLOO,
            "n1/rank1.log": "2026-11-26 00:17:41 start\n" + STEPS + TRACEBACK + GLOO,
            "n2/rank2.log": STEPS,
            "n2/messages": XID,
        },
    )
    status, document = answer(capsys, tmp_path)
    joined = document["joined"]
    assert (status, joined["host"], joined["order"]) == (1, "n2", "cause")
    assert document["findings"][0]["code"] == "GPU_XID" and joined["timeline"][0]["path"].endswith("n2/messages")
    assert "ranks 0-1 waited for rank 2 on it" in joined["answer"]


def test_a_program_that_raises_is_no_fault_of_hardware(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, {"n2/rank2.log": STEPS + TRACEBACK + "ValueError: bad shard 17\n", "n2/messages": XID})
    _, document = answer(capsys, tmp_path)
    assert [found["code"] for found in document["findings"]] == ["JOB_EXCEPTION", "GPU_XID"]
    assert document["findings"][0]["device"] == "rank 2 on n2"


def test_the_last_attempt_of_a_launcher_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(
        tmp_path,
        {
            "logs/attempt_0/0/stderr.log": TRACEBACK + "ValueError: the first time\n",
            "logs/attempt_1/0/stderr.log": TRACEBACK + GLOO,
            "logs/attempt_1/1/stderr.log": TRACEBACK + "KeyError: 'the second time'\n",
        },
    )
    assert answer_in_words(capsys, tmp_path)[1].startswith("Rank 1 failed first: KeyError: 'the second time'")


def test_an_archive_is_joined_like_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "logs.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {
            "job/rank0.log": STEPS + TRACEBACK + GLOO,
            "/etc/rank1.log": TRACEBACK + "ValueError: an absolute name\n",
            "job/rank1.log": STEPS + "end\n",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("job/rank2.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    status, document = answer(capsys, path)
    assert status == 1 and document["joined"]["ranks"] == [1]
    inside = [file["path"].removeprefix(str(path)) for file in document["files"]]
    assert not any("etc" in name or "rank2" in name for name in inside), inside


def test_pipes_links_and_devices_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = put(tmp_path / "job", {"rank0.log": TRACEBACK + "ValueError: this\n"})
    put(tmp_path, {"outside.log": TRACEBACK + "KeyError: 'that'\n"})
    os.mkfifo(inside / "pipe")
    (inside / "rank1.log").symlink_to(tmp_path / "outside.log")
    (inside / "up").symlink_to(tmp_path)
    status, document = answer(capsys, inside)
    assert (status, len(document["files"])) == (1, 1)
    assert {note.partition(":")[0] for note in document["notes"]} == {
        "not read (pipe, socket or device)",
        "not read (symbolic link)",
    }


def test_a_log_that_is_cut_in_a_character_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, {"rank0.log": STEPS + TRACEBACK + GLOO})
    (tmp_path / "rank1.log").write_bytes(STEPS.encode() + "step 8 loss 0.8 ▇▇".encode()[:-1])
    _, document = answer(capsys, tmp_path)
    assert document["joined"]["ranks"] == [1]
    assert document["joined"]["timeline"][0]["line"] == 9


def test_ten_thousand_files_are_read_within_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(10_000):
        (tmp_path / f"note{number}-x").write_text(f"{number}\n")
    put(tmp_path, {"rank0.log": TRACEBACK + "ValueError: among many\n"})
    _, text = answer_in_words(capsys, tmp_path)
    assert text.startswith("Rank 0 failed first: ValueError: among many")
    assert "Of no known format: 10000 files" in text


def test_a_folder_without_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, {"readme": "no log\n"})
    assert answer(capsys, tmp_path)[0] == 2
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    status, document = answer(capsys, tmp_path)
    assert (status, document["files"], document["joined"]) == (2, [], None)
    assert "holds no file" in answer_in_words(capsys, tmp_path)[1]


def test_stacks_in_the_logs_tell_who_is_in_no_collective(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collective = '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce\n'
    reads = '  File "/usr/lib/python3.11/socket.py", line 10 in readinto\n  File "/home/u/store.py", line 9 in fetch\n'
    for rank in range(4):
        head = f"rank {rank}/4 pid={100 + rank} host=gpu-0{rank}\nstep 1 loss 0.3\n"
        dump = "Timeout (0:05:00)!\nThread 0x00007f1 (most recent call first):\n"
        put(tmp_path, {f"worker-{rank}.log": head + dump + (reads if rank == 2 else collective)})
    _, text = answer_in_words(capsys, tmp_path)
    assert text.startswith("Rank 2 on gpu-02 hung in fetch (/home/u/store.py:9): it is in no collective")
    assert 'worker-2.log:6 (rank 2, gpu-02): File "/home/u/store.py", line 9 in fetch' in text
