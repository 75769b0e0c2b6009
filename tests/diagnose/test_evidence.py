"""What other tools left of a job: TraceML's summary, the answers of torch's debug server, dumps of stacks, recordings
within archives, and what says of a process that it runs, left, or was one of a container's."""

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.diagnosed import diagnose_text
from support.paths import DATA
from support.unpacked import unpack

from laggard.diagnose.archive import ZipArchive
from laggard.diagnose.command import diagnose_together
from laggard.diagnose.folder import given_files
from laggard.diagnose.parts import answers
from laggard.model import Severity, Verdict
from laggard.wire.diagnosis import Diagnosis

FIELD = DATA / "field"

SAYS = {
    "traceml-input-straggler-json": "rank 6 on ws-07 waits longer than the others for its input",
    "traceml-compute-straggler-old-text": "rank 3 computes forward longer than the others",
    "traceml-verdict-in-log": "rank 1 comes late to backward",
    "traceml-input-bound-all": "all ranks wait for their input for 53% of each step",
    "debug-stacks-page": "rank 2 on hgx-21 hung in refill_buffer (/workspace/pretrain.py:11)",
    "debug-stacks-dump-partial": "rank 3 on hgx-22 does not answer torch's debug server",
    "debug-fr-json-page": "rank 2 on hgx-21 is hung: it never came to all_reduce number 21",
    "debug-fr-tables-page": "rank 2 did not come to all_reduce, number 6, of group default_pg",
    "debug-fr-dump-mismatch": "rank 1 called broadcast where the others called all_reduce, number 6",
    "debug-worker-answers": "rank 1 hung in refill_buffer",
    "pyspy-spin-and-watchdog": "rank 2 hung in wait_for_flag (sync.py:31)",
    "spin-top-and-logs": "rank 1 on gx12 hung: its process 15946 runs without end (state R, 44 % of a core)",
    "faulthandler-later-logs": "rank 3 hung in upload_shard",
    "early-exit-all-logs": "rank 2 on gx13 left before the others, without an error",
    "early-exit-one-log-missing": "rank 2 on gx13 left before the others, without an error",
    "agent-sigterm-rank-named": "rank 2 failed: the launcher was told to stop by signal 15",
    "pod-oom-rank-in-environment": "rank 3 on k8s-gpu-09 was killed for its memory limit of 96Gi",
    "megatron-rerun-nan": "rank 5 on hgx-12 failed first: Megatron got nan in iteration 314",
    "container-cli-driver-rpc": "nvidia-container-cli says initialization error: driver rpc error",
    "openblas-pthread-nproc": "the limit of processes (ulimit -u",
    "recording-in-tar": "rank 5 on n0 is slow to get its input",
    "dumps-in-zip": "rank 6 is hung: it never came to all_reduce number 73",
}


def diagnosed(*paths: Path) -> Diagnosis:
    return diagnose_together(given_files([str(path) for path in paths]))


def case(name: str) -> Path:
    """The folder of a case; of one file, that file."""
    files = [path for path in (FIELD / f"evidence-{name}").rglob("*") if path.is_file()]
    return files[0] if len(files) == 1 else FIELD / f"evidence-{name}"


def said(diagnosis: Diagnosis) -> str:
    first = diagnosis.findings[0]
    return f"{first.device} {first.summary}"


@pytest.mark.parametrize("name", SAYS)
def test_the_rank_and_the_reason_are_told(name: str) -> None:
    assert SAYS[name] in said(diagnosed(case(name)))


def summary(**changes: object) -> str:
    tree = json.loads(case("traceml-input-straggler-json").read_text())
    tree["step_time"]["issues"] = [{**tree["step_time"]["issues"][0], **changes}]
    return json.dumps(tree)


def test_a_summary_of_too_few_steps_is_unknown() -> None:
    result = diagnose_text(summary(kind="WARMUP", ranks=[]))
    assert result.verdict is Verdict.UNKNOWN and not result.findings


@pytest.mark.parametrize(
    "changes",
    [{"ranks": ["6"]}, {"ranks": [-1]}, {"ranks": None}, {"kind": 3}, {"kind": "BALANCED"}, {"ranks": [True]}],
)
def test_a_summary_that_names_no_rank_accuses_none(changes: dict[str, object]) -> None:
    assert not diagnose_text(summary(**changes)).findings


def test_a_rank_without_its_row_is_told_without_times() -> None:
    (found,) = diagnose_text(summary(ranks=[77])).findings
    assert (found.code, found.device) == ("RANK_LATE", "rank 77") and "median" not in found.summary


def test_a_database_says_which_file_to_give() -> None:
    (file,) = diagnose_text("SQLite format 3\0" + "\1\2\3" * 99).files
    assert "final_summary.json" in file.unknown


def page(bodies: Mapping[int, str], asked: str = "dump_traceback") -> str:
    ranks = (
        f"<h2>Rank {rank}: http://h{rank}:4000{rank}/handler/{asked}?</h2>\n{text}\n" for rank, text in bodies.items()
    )
    return f"<!doctype html>\n<h1>Stacks</h1>\n{''.join(ranks)}</section>\n"


def frames(*places: str) -> str:
    lines = "".join(f'  File "{place}", line 7 in {name}\n' for place, name in (it.split("#") for it in places))
    return f"<pre>Thread 0x00007f02b75edb80 (most recent call first):\n{lines}</pre>"


IN_ALL_REDUCE = frames("/opt/site-packages/torch/distributed/distributed_c10d.py#all_reduce", "/a/train.py#main")
GONE = "<p>Failed to fetch: status=503</p>\n<pre>ConnectionError: refused</pre>"


def test_workers_that_do_not_answer_are_accused_where_others_wait() -> None:
    (found,) = diagnose_text(page({0: IN_ALL_REDUCE, 1: IN_ALL_REDUCE, 2: GONE})).findings
    assert (found.device, found.severity) == ("rank 2 on h2", Severity.CRITICAL)
    assert "ranks 0-1 wait in a collective" in found.summary


def test_a_worker_that_does_not_answer_beside_ranks_that_go_on_is_a_warning() -> None:
    moving = frames("/a/model.py#forward")
    (found,) = diagnose_text(page({0: moving, 1: moving, 2: GONE})).findings
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "text", [page({0: GONE, 1: GONE, 2: IN_ALL_REDUCE}), page({0: "<p>Failed to fetch: status=404</p>"})]
)
def test_a_server_that_most_ranks_lack_accuses_nobody(text: str) -> None:
    assert not diagnose_text(text).findings


def test_answers_keep_what_a_page_has_escaped() -> None:
    (answer,) = answers(page({3: "<pre>File &quot;a.py&quot; in &lt;module&gt;</pre>"}))
    assert (answer.rank, answer.host, answer.status, answer.text) == (3, "h3", 200, 'File "a.py" in <module>')


def test_a_collective_that_is_only_in_another_state_is_no_fault() -> None:
    """Rank 2 had completed what the others had begun."""
    result = diagnosed(case("debug-fr-tables-page"))
    assert [found.device for found in result.findings] == ["rank 2"]
    assert "number 5" not in said(result)


def test_stacks_of_processes_without_ranks_name_the_process() -> None:
    result = diagnosed(FIELD / "evidence-pyspy-spin-and-watchdog" / "py-spy.txt")
    assert said(result).startswith("process 5102 hung in wait_for_flag (sync.py:31)")


def test_one_stack_is_unknown_and_says_where_it_stands() -> None:
    result = diagnosed(FIELD / "evidence-debug-worker-answers" / "rank1.dump_traceback.txt")
    assert result.verdict is Verdict.UNKNOWN and "refill_buffer" in result.files[0].unknown


def tar_of(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "job")
    return path


def zip_of(members: Mapping[str, bytes | str], path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_a_recording_says_the_same_in_a_folder_and_in_archives(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with tarfile.open(case("recording-in-tar")) as archive:
        unpack(archive, folder)
    members = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    told = [diagnosed(it) for it in (folder, tar_of(folder, tmp_path / "x.tgz"), zip_of(members, tmp_path / "x.zip"))]
    assert {said(it) for it in told} == {"rank 5 on n0 is slow to get its input"}
    assert len({frozenset((file.kind, file.unknown) for file in it.files) for it in told}) == 1


def test_nothing_of_an_archive_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert diagnosed(case("dumps-in-zip")).findings
    assert not list(tmp_path.iterdir())


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    dump = (zipfile.ZipFile(case("dumps-in-zip")).read("nccl_dumps/rank_0"), b"")[0]
    outside = tmp_path / "outside_0"
    found = diagnosed(zip_of({f"../../{outside.name}": dump, "/etc/../x/..": dump}, tmp_path / "x.zip"))
    assert len(found.files) == 2 and not outside.exists()


LOST = "Unable to determine the device handle for GPU0000:B1:00.0: Unknown Error\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-30],
        lambda data: data.replace(b"\x50\x4b\x01\x02", b"\x50\x4b\x01\x03"),
        lambda data: data[:60] + bytes(40) + data[100:],
        lambda data: data[:-12] + struct.pack("<HII", 65535, 0xFFFFFFF, 0)[:10] + data[-2:],
    ],
)
def test_a_damaged_zip_archive_is_told(damage: object, tmp_path: Path) -> None:
    path = zip_of({"smi.txt": LOST, "rank_0": bytes(999)}, tmp_path / "x.zip")
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    assert diagnosed(path).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "name", ["archive/data.pkl", "arr_0.npy", "x-1.dist-info/METADATA", "word/[Content_Types].xml"]
)
def test_what_programs_make_of_zip_is_no_archive(name: str, tmp_path: Path) -> None:
    path = zip_of({name: "RuntimeError: CUDA out of memory\n", "b.log": "MemoryError\n"}, tmp_path / "x.pt")
    result = diagnosed(path)
    assert not result.findings and "zip archive of a program's own" in result.files[0].unknown


def test_encrypted_members_are_told() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "secret")
    data = bytearray(buffer.getvalue())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    archive_ = ZipArchive(io.BytesIO(bytes(data)))
    assert not list(archive_.members()) and "encrypted" in archive_.problem


def looked_at(tmp_path: Path, states: Mapping[int, str], looks: int = 2) -> Diagnosis:
    for rank in states:
        text = f"rank {rank} of {len(states)} is process {100 + rank} on c1\nepoch 1 step 4 loss 0.5\n"
        (tmp_path / f"rank{rank}.log").write_text(text)
    for look in range(looks):
        rows = "".join(f"{100 + rank} {state} 00:0{look} python train.py\n" for rank, state in states.items())
        head = "ada@c1:~$ ps -o pid,stat,time,args\n PID STAT TIME COMMAND\n"
        (tmp_path / f"ps-{'ab'[look]}.txt").write_text(head + rows)
    return diagnosed(tmp_path)


def test_the_one_process_that_runs_while_all_others_sleep_is_named(tmp_path: Path) -> None:
    assert "rank 2 on c1 hung: its process 102 runs without end" in said(
        looked_at(tmp_path, {0: "Sl", 1: "Sl", 2: "Rl"})
    )


@pytest.mark.parametrize(
    ("states", "looks"),
    [
        ({0: "Sl", 1: "Sl", 2: "Rl"}, 1),
        ({0: "Sl", 1: "Rl", 2: "Rl"}, 2),
        ({0: "Rl", 1: "Rl", 2: "Rl"}, 2),
        ({0: "Sl", 1: "Rl"}, 2),
    ],
    ids=["seen once", "two run", "all run", "two ranks"],
)
def test_processes_that_run_now_and_then_are_no_fault(states: dict[int, str], looks: int, tmp_path: Path) -> None:
    assert not looked_at(tmp_path, states, looks).findings


def ended(tmp_path: Path, last: str) -> Diagnosis:
    """Two ranks time out waiting; rank 1's log ends with `last`, and rank 3's is missing."""
    for rank in (0, 2):
        text = f"rank {rank} of 4 is process {200 + rank} on c{rank}\nTraceback (most recent call last):\n"
        text += (
            f'  File "t.py", line 3, in <module>\nRuntimeError: [{rank}] gloo/unbound_buffer.cc:78] Timed out waiting '
        )
        (tmp_path / f"out.{rank}").write_text(text + "9000ms for recv operation to complete\n")
    (tmp_path / "out.1").write_text(f"rank 1 of 4 is process 201 on c1\nepoch 1 step 4 loss 0.5\n{last}\n")
    return diagnosed(tmp_path)


@pytest.mark.parametrize(
    "last",
    [
        "Training finished.",
        "[rank 1] all epochs done, exiting",
        "no more data",
        "job completed, exit code 0\n[W1120] warns",
    ],
)
def test_a_rank_that_says_it_is_done_left_the_others(last: str, tmp_path: Path) -> None:
    found = ended(tmp_path, last)
    assert "rank 1 on c1 left before the others" in said(found)
    assert found.joined is not None and found.joined.ranks == (1,)


@pytest.mark.parametrize(
    "last", ["epoch 3 done", "checkpoint saved", "training is not finished", "waiting for the job to complete"]
)
def test_a_log_that_only_ends_is_no_proof_that_its_rank_left(last: str, tmp_path: Path) -> None:
    assert "left before" not in said(ended(tmp_path, last))


def test_a_launcher_on_a_host_with_several_ranks_names_none_of_them(tmp_path: Path) -> None:
    stopped = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15\n"
    for host, first in (("c1", 0), ("c2", 2)):
        lines = "".join(f"rank {rank} of 4 is process {50 + rank} on {host}\n" for rank in (first, first + 1))
        (tmp_path / f"{host}.log").write_text(lines + ("Traceback (most recent call last):\n" + stopped) * (first == 2))
    joined = diagnosed(tmp_path).joined
    assert joined is not None and not joined.ranks


def test_a_kernel_log_among_numbered_texts_of_no_format_is_still_read(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("a line of a diary that nobody reads\n" * 1000)
    (tmp_path / "7.txt").write_text(
        "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n"
    )
    assert "GPU_XID" in str(diagnosed(tmp_path))
