"""`laggard diagnose` on what jobs print: which failure came first, whose it is, and which texts are no failure."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.diagnosed import diagnose_text
from support.job_logs import JOB_LOGS, job_expectations, job_text, jobs_firing, jobs_near

from laggard.catalogue.findings import all_types
from laggard.cli import main
from laggard.diagnose.job.lines import LineParser
from laggard.diagnose.job.reader import JobLogReader
from laggard.diagnose.job.rules import ADVICE, RULES
from laggard.wire.diagnosis import Diagnosis

OF_NO_LOG = ("JOB_STALE_LOCK", "JOB_LEFTOVERS")
CODES = [kind.code for kind in all_types() if kind.code.startswith("JOB_") and kind.code not in OF_NO_LOG]
FIRING = [name for name, expected in job_expectations().items() if expected["findings"]]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def answer(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    return [(found.code, found.device, found.summary) for found in diagnosis.findings]


@pytest.mark.parametrize("name", job_expectations())
def test_a_log_is_judged_as_expected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = job_expectations()[name]
    status = main(["diagnose", "--format", "json", str(JOB_LOGS / f"{name}.log")])
    document = json.loads(capsys.readouterr().out)
    found = [[each["code"], each["severity"], each["device"]] for each in document["findings"]]
    assert (found, document["files"][0]["kind"]) == (expected["findings"], "job log")
    assert status == (2 if expected.get("unknown") else 1)


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_a_log_that_shows_it(code: str) -> None:
    assert jobs_firing(code)


def test_the_commonest_codes_have_texts_that_only_speak_of_them() -> None:
    near = {code for code in CODES if jobs_near(code)}
    assert {"JOB_GPU_OUT_OF_MEMORY", "JOB_KILLED", "JOB_NAN_LOSS", "JOB_COLLECTIVE_TIMEOUT", "JOB_EXCEPTION"} <= near


def test_each_kind_of_failure_has_advice() -> None:
    assert {rule.kind for rule in RULES} | {"exception", "status", "aborted"} <= set(ADVICE)


def test_the_first_line_names_the_rank_and_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(JOB_LOGS / "gpu_memory_loudest_last.log")])
    out = capsys.readouterr().out
    assert out.startswith("Rank 2 failed first: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert out.index("What to do:") < out.index("afterwards:")


# Heads that launchers put before each line. The answer is the same behind each; a host may come to be known.
HEADS: dict[str, Callable[[int, str], str]] = {
    "plain": lambda number, line: line,
    "srun": lambda number, line: f"{number % 8}: {line}",
    "mpirun": lambda number, line: f"[1,{number % 8}]<stderr>:{line}",
    "tee": lambda number, line: f"[default{number % 8}]:{line}",
    "kubectl": lambda number, line: f"[pod/job-worker-0/pytorch] {line}",
    "docker": lambda number, line: f"2025-05-21T15:{number // 60 % 60:02d}:{number % 60:02d}.123456789Z {line}",
    "containerd": lambda number, line: f"2025-05-21T15:43:03.123456789Z stderr F {line}",
    "json": lambda number, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-05-21T15:43:03Z"}),
    "journald": lambda number, line: f"May 21 15:43:03 gpu17 torchrun[812]: {line}",
    "pdsh": lambda number, line: f"worker-1: {line}",
    "ray": lambda number, line: f"(TrainWorker pid=812, ip=10.0.0.7) {line}",
    "colours": lambda number, line: f"\x1b[36m\x1b[1m{line}\x1b[0m",
    "logger": lambda number, line: f"2025-05-21 15:43:03,123 {line}",
    "progress": lambda number, line: f"Epoch 1:  17%|\u2588\u2588  | 17/100 [00:07<00:36]\r{line}\r",
}
OF_ONE_PROCESS = ("srun", "mpirun", "tee")


def with_heads(text: str, *names: str) -> str:
    lines = text.splitlines()
    for name in names:
        same = name in OF_ONE_PROCESS  # one number for all: lines of a traceback come from one process
        lines = [HEADS[name](0 if same else number, line) for number, line in enumerate(lines)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "name", [name for name in FIRING if job_expectations()[name]["findings"][0][2].startswith("rank")]
)
def test_heads_change_nothing(name: str, head: str) -> None:
    ((code, device, summary),) = answer(diagnose_text(job_text(name)))
    ((found_code, found_device, found_summary),) = answer(diagnose_text(with_heads(job_text(name), head)))
    assert (found_code, found_summary, found_device.split(" on ")[0]) == (code, summary, device.split(" on ")[0])


@given(st.permutations(["docker", "kubectl", "srun", "colours"]), st.sampled_from(["gpu_memory", "watchdog_behind"]))
@settings(max_examples=30, deadline=None)
def test_heads_nest_in_any_order(heads: list[str], name: str) -> None:
    bare, headed = diagnose_text(job_text(name)), diagnose_text(with_heads(job_text(name), *heads))
    assert [each[0] for each in answer(headed)] == [each[0] for each in answer(bare)]
    assert answer(headed)[0][1].split(" on ")[0] == answer(bare)[0][1]


def traceback_of(rank: int, second: int, error: str) -> list[str]:
    head = f"2025-05-21T15:43:{second:02d}.000Z [rank{rank}]: "
    return [head + text for text in ("Traceback (most recent call last):", '  File "/w/t.py", line 3, in f', error)]


@given(st.integers(0, 7), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_order_in_time_counts_and_not_the_order_of_files_or_of_other_ranks_lines(first: int, seed: int) -> None:
    """Each rank raises, one of them a second before the others; their lines are mixed, or in a file a rank."""
    chosen = random.Random(seed)
    ranks = {
        rank: traceback_of(rank, 10 if rank == first else chosen.randint(11, 50), f"KeyError: {rank}")
        for rank in range(8)
    }
    files = ["\n".join(lines) + "\n" for lines in ranks.values()]
    chosen.shuffle(files)
    assert answer(diagnose_text(*files))[0][1:] == (f"rank {first}", f"failed first: KeyError: {first}")
    waiting = {rank: list(lines) for rank, lines in ranks.items()}
    mixed = [waiting[first].pop(0)]  # in one file the order of the lines is that of time
    while any(waiting.values()):
        mixed.append(waiting[chosen.choice([rank for rank, lines in waiting.items() if lines])].pop(0))
    assert answer(diagnose_text("\n".join(mixed) + "\n"))[0][1] == f"rank {first}"


def test_of_ranks_in_their_own_files_without_dates_the_one_that_says_why_counts() -> None:
    lost = "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: x.hpp:268, remote process exited\n"
    failed = "Traceback (most recent call last):\n" + '  File "/w/t.py", line 3, in f\n' + OOM + "\n"
    files = [lost.format(0), lost.format(1), "".join(f"[rank2]: {line}\n" for line in failed.splitlines())]
    for order in (files, files[::-1]):
        assert answer(diagnose_text(*order))[0][:2] == ("JOB_GPU_OUT_OF_MEMORY", "rank 2")


def test_a_failure_before_much_more_training_is_not_the_cause() -> None:
    handled = "".join(f"[rank0]: {line}\n" for line in ("Traceback (most recent call last):", OOM))
    training = "".join(f"[rank0]: step {step} loss: 2.1\n" for step in range(500))
    ended = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: bad shape\n"
    assert diagnose_text(handled + training).verdict.value == "unknown"
    assert answer(diagnose_text(handled + training + ended))[0][:2] == ("JOB_EXCEPTION", "rank 1")
    assert answer(diagnose_text(handled + ended))[0][:2] == ("JOB_GPU_OUT_OF_MEMORY", "rank 0")


def test_what_nccl_chose_is_judged_beside_the_failure() -> None:
    """The log of a job that went by TCP, and ran out of memory later: the end of the job comes first."""
    tcp = (JOB_LOGS.parent / "nccl_logs" / "tcp_no_libibverbs.log").read_text()
    codes = [each[0] for each in answer(diagnose_text(tcp + job_text("gpu_memory")))]
    assert codes[0] == "JOB_GPU_OUT_OF_MEMORY" and "TCP_FALLBACK" in codes


@given(st.lists(st.sampled_from([job_text(name) for name in FIRING]) | st.text(max_size=80), max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_any_text_is_judged(texts: list[str], data: st.DataObject) -> None:
    text = "\n".join(texts)
    cut = data.draw(st.integers(0, len(text)))
    assert diagnose_text(text[cut:] or "x").verdict.value in ("ok", "fail", "unknown")


@given(st.text() | st.from_regex(r"(\[?[a-z0-9,:=<>. ()\[\]{}\"-]{0,12}){0,6}", fullmatch=True))
def test_any_line_is_parsed(line: str) -> None:
    assert len(LineParser().parse(line).text) <= len(line)


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_pieces_do_not_matter(size: int) -> None:
    """A file comes in pieces that end with a line: wherever they end, the same is found."""
    lines = job_text("watchdog_after_a_death").splitlines(True)
    reader, whole = JobLogReader(), JobLogReader()
    for each in (reader, whole):
        each.begin_file()
    for start in range(0, len(lines), size):
        reader.feed("".join(lines[start : start + size]))
    whole.feed("".join(lines))
    assert [event.code for event in reader.evidence().events] == [event.code for event in whole.evidence().events]
    assert reader.evidence().statuses == whole.evidence().statuses


@pytest.mark.slow
def test_a_flood_of_failures_takes_bounded_memory(tmp_path: Path) -> None:
    line = "gpu07:{0}:1357 [4] NCCL WARN NET/IB : Got completion from peer 10.0.0.{1}<44206> with status=12 opcode=1\n"
    with open(tmp_path / "flood.log", "w") as log:
        log.write(job_text("gpu_memory"))
        for number in range(100_000):
            log.write(line.format(number % 8, number % 250))
    code = (
        "import sys; from laggard.cli import main; main(['diagnose', sys.argv[1]]);"
        "sys.stderr.write(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "flood.log")], capture_output=True, check=True, text=True
    )
    assert done.stdout.startswith("Rank 3 failed first: CUDA out of memory")
    assert int(done.stderr) < 120 << 10


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_log_that_is_all_errors_is_judged_as_one_without_them(end: str) -> None:
    """Lines that say nothing are passed over the faster the more there are, and what says why is still found."""
    noise = [f"gpu07:81:9 [4] NCCL WARN call {call} failed, error {call}" for call in range(40_000)]
    trace = [
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/job/train.py", line 12, in <module>',
        "[rank3]:     step()",
        f"[rank3]: {OOM}",
    ]
    bar = "\rstep 1 loss 2.0\rstep 2 loss 1.9 gpu07:81:9 [4] NCCL WARN call 1 failed\r[rank5]: RuntimeError: late"
    said = [*trace, bar, "[rank3]: loss 2.0 at step 7, 3 it/s"]
    mixed = [*noise[:30_000], *trace, *noise[30_000:], *said[len(trace) :], *noise[:100]]
    alone, among = answer(diagnose_text(end.join(said) + end)), answer(diagnose_text(end.join(mixed) + end))
    assert alone[0][:2] == ("JOB_GPU_OUT_OF_MEMORY", "rank 3") and among[0][:2] == alone[0][:2]
    events, progress = read_in_pieces(mixed, end)
    assert (events, progress) == read_in_pieces(said, end) and len(events) == 1 and sum(progress) > 2


def read_in_pieces(lines: list[str], end: str) -> tuple[list[tuple[str, str]], tuple[int, ...]]:
    reader = JobLogReader()
    reader.begin_file()
    for start in range(0, len(lines), 10_000):
        reader.feed("".join(line + end for line in lines[start : start + 10_000]))
    evidence = reader.evidence()
    return [(event.code, event.summary) for event in evidence.events], evidence.progress


DOWNLOAD = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.x.ai', port=443): Max retries exceeded"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("AssertionError", "the job failed: AssertionError"),
        ("KeyError: 'void'\n\n", "the job failed: KeyError: 'void'"),
        ("[rank3]: ValueError: too many values", "rank 3 failed first: ValueError: too many values"),
        ('  File "/a/train.py", line 7, in f\n    g()\ntorch.cuda.Broken: no', None),
        ('  File "/a/train.py", line 7, in f\n    g()\nZeroDivisionError: x', "the job failed: ZeroDivisionError: x"),
        ("(W pid=1, ip=10.1.0.7) ERROR 06-25 15:28:30 w.py:8] TypeError: x", "a process on 10.1.0.7 failed first"),
        ("step 1 loss 2.0\nstep 2 loss 1.9\nOSError: [Errno 99] x", "the job failed: OSError: [Errno 99] x"),
        ("OSError: x\nstep 2 loss 1.9\n", None),  # it was caught
        ("ValueError: x\nretrying\n", None),
        (f"{DOWNLOAD}\nstep 1 loss 2.0\n", None),  # of telemetry, without which the training goes on
        (f"step 1 loss 2.0\n{DOWNLOAD}", "the job failed: a download failed, since this node does not reach api.x.ai"),
        ("step 1 loss 2.0\n2026-01-01 10:00:00,1 ERROR [data] ValueError: bad record, skipped", None),
        ("Exception ignored in: <function f>\nTraceback (most recent call last):\n  File 'p'\nTypeError: x", None),
        ("2026-01-01 10:00:00 WARNING retry: ConnectionError: reset", None),
        ("INFO 06-25 15:28:30 w.py:8] TypeError: x", None),
        ("UserWarning: x", None),
        ("We then saw ValueError: x", None),
        (
            "torch/api.py:826] failed (exitcode: -9) local_rank: 0 (pid: 1322) of binary: python",
            "local rank 0 failed first",
        ),
        (
            "rank2 (local rank: 2)exitcode: -9 (pid: 36071)error file: <N/A>",
            "rank 2 failed first: the process was killed",
        ),
    ],
)
def test_the_last_line_of_an_exception_alone(text: str, says: str | None) -> None:
    """As `tail`, a scheduler's comment or a picture have it: what is above it is not there."""
    found = [f"{each.device} {each.summary}" for each in diagnose_text(text).findings]
    assert len(found) == (says is not None)
    assert says is None or found[0].startswith(says)
