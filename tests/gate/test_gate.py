"""`laggard healthcheck`: exit status, first line, JSON, profiles, deadline, and what it costs to start."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.materialise import materialise
from support.rows import rows

from laggard.cli import main
from laggard.probes.registry import PROBES

NAMES = [probe.name for probe in PROBES]
THREE = ("limits", "clock", "disks")
EVERY_OTHER = [word for name in NAMES if name not in THREE for word in ("--skip", name)]


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs the gate with three probes on a recorded machine, by name or folder. Returns exit status and stdout."""

    def run(machine: str | Path, *words: str) -> tuple[int, str]:
        root = machine if isinstance(machine, Path) else tmp_path / "machines" / machine
        if not root.exists():
            materialise(str(machine), root)
        capsys.readouterr()
        status = main(["healthcheck", "--host-root", str(root), *EVERY_OTHER, *words])
        return status, capsys.readouterr().out

    return run


Judge = Callable[..., tuple[int, str]]


def profile(folder: Path, text: str) -> str:
    path = folder / "profile.yaml"
    path.write_text(text)
    return str(path)


@rows("gate/first_lines")
def test_the_first_line_is_the_answer(machine: str, status: int, first_line: str, judge: Judge) -> None:
    got, out = judge(machine)
    assert got == status
    assert out.splitlines()[0].startswith(first_line)
    assert len(out.splitlines()[0]) <= 80


def test_text_folds_over_nodes_that_are_alike(judge: Judge) -> None:
    """Nothing but the finding and where to read of it: no time, no node's name, no measured value."""
    _, out = judge("disk_full")
    assert out.splitlines() == [
        "laggard: DISK_FULL / 99 % used, 2.2 GiB left",
        "critical DISK_FULL / 99 % used, 2.2 GiB left | laggard findings explain DISK_FULL",
    ]


def test_verbose_text_gives_evidence_fix_and_probes(judge: Judge) -> None:
    _, out = judge("disk_full", "--verbose")
    _, node, finding, *probes = out.splitlines()
    assert re.fullmatch(r"node \S+ fail", node)
    assert finding.startswith("critical DISK_FULL / 99 % used")
    for part in ("used_ratio=0.995", "fix: Remove", "df -h /", "laggard findings explain DISK_FULL"):
        assert part in finding
    assert [line.split()[:3] for line in probes] == [
        ["probe", "limits", "ok"],
        ["probe", "clock", "ok"],
        ["probe", "disks", "fail"],
    ]


def test_skipped_probes_are_counted_and_listed_where_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = str(materialise("plain", tmp_path / "machine"))
    words = ["healthcheck", "--host-root", root, "--only", "disks", "--only", "gpu_ecc", "--only", "gpu_xid"]
    assert main(words) == 0
    assert capsys.readouterr().out == "laggard: ok, 1 probe passed and 2 skipped\n"
    assert main([*words, "--verbose"]) == 0
    told = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[2:]]
    assert ["probe", "gpu_ecc", "skipped"] in told and len(told) == 3, told


def test_a_warning_is_reported_and_does_not_fail(judge: Judge, tmp_path: Path) -> None:
    status, out = judge("clock_off")
    assert status == 0 and out.splitlines()[0].endswith(", 1 warning") and "warning CLOCK_SKEW clock off by" in out
    strict = profile(tmp_path, "warnings_fail: true\n")
    status, out = judge("clock_off", "--profile", strict)
    assert status == 1 and out.startswith("laggard: CLOCK_SKEW clock off by 0.21 s\n")


def broken_machine(folder: Path, *names: str) -> Path:
    """A machine with the faults of disk_full and memlock_low, and a mount with a long name of control characters."""
    machine = materialise("memlock_low", folder / "machine")
    shutil.copytree(materialise("disk_full", folder / "disk_full") / "laggard", machine / "laggard", dirs_exist_ok=True)
    facts = json.loads((machine / "laggard/facts.json").read_text())
    point = "/\x1b[31m" + "d" * 100
    facts["file_systems"][point] = facts["file_systems"]["/"] | {
        "total_bytes": 10**9,
        "free_bytes": 0,
        "available_bytes": 0,
    }
    (machine / "laggard/facts.json").write_text(json.dumps(facts))
    with (machine / "proc/self/mounts").open("a") as mounts:
        mounts.write(f"/dev/sdz {point} ext4 rw 0 0\n")
    return machine


def test_several_findings_are_counted_and_control_characters_are_harmless(judge: Judge, tmp_path: Path) -> None:
    machine = broken_machine(tmp_path)
    status, out = judge(machine)
    first, *rest = out.splitlines()
    assert status == 1 and first.endswith(" (+1 more)") and len(first) <= 80
    assert all(line.isascii() and line.isprintable() for line in [first, *rest])
    status, out = judge(machine, "--only", "disks", "--format", "json")
    assert status == 1 and len(json.loads(out)["findings"]) == 2


def test_unknown_is_2_and_fail_comes_before_it(judge: Judge, tmp_path: Path) -> None:
    machine = broken_machine(tmp_path)
    (machine / "proc/self/mounts").unlink()
    status, out = judge(machine, "--skip", "limits")
    assert status == 2
    assert out.startswith("laggard: unknown, disks: cannot read /proc/self/mounts: No such file")
    assert len(out.splitlines()[0]) <= 80
    status, out = judge(machine)
    assert status == 1 and out.startswith("laggard: MEMLOCK_LIMIT ")


def test_a_profile_may_make_unknown_a_failure(judge: Judge, tmp_path: Path) -> None:
    machine = broken_machine(tmp_path)
    (machine / "proc/self/mounts").unlink()
    words = ["--only", "disks", "--format", "json", "--profile"]
    status, out = judge(machine, *words, profile(tmp_path, "unknown: fail\n"))
    assert status == 1 and json.loads(out)["verdict"] == "fail"


def test_having_judged_nothing_is_2(judge: Judge, tmp_path: Path) -> None:
    machine = broken_machine(tmp_path)
    (machine / "proc/self/mounts").write_text("nfs:/ / nfs4 rw 0 0\n")
    status, out = judge(machine, "--only", "disks")
    assert status == 2 and out.startswith("laggard: unknown, nothing was judged: 1 probe skipped\n")


def test_profile_thresholds(judge: Judge, tmp_path: Path) -> None:
    lenient = profile(tmp_path, "thresholds:\n  disks: {enough_bytes: 1000000000}\n")
    assert judge("disk_full", "--profile", lenient)[0] == 0
    assert judge("disk_full", "--profile", profile(tmp_path, "skip: [disks]\n"))[0] == 0
    assert judge("disk_full", "--profile", profile(tmp_path, "only: [clock]\n"))[0] == 0
    only_disks = ["--only", "disks", "--profile", profile(tmp_path, "only: [clock]\n")]
    assert judge("disk_full", *only_disks)[0] == 1  # the command line's choice replaces the profile's


@pytest.mark.parametrize("name", ["prolog", "epilog", "periodic", "full"])
def test_named_profiles(name: str, judge: Judge) -> None:
    assert judge("healthy", "--profile", name)[0] == 0
    assert judge("disk_full", "--profile", name)[0] == 1


def test_a_daemons_own_limit_is_no_reason_to_fail(judge: Judge, tmp_path: Path) -> None:
    machine = broken_machine(tmp_path)
    subprocess.run(["rm", "-r", str(machine / "sys/fs")], check=True)
    assert judge(machine, "--only", "limits", "--profile", "prolog")[0] == 1
    assert judge(machine, "--only", "limits", "--profile", "periodic")[0] == 0


@pytest.mark.parametrize(("machine", "status"), [("healthy", 0), ("disk_full", 1), ("unreadable", 2)])
def test_json_is_one_document_with_the_contracts_fields(
    machine: str, status: int, judge: Judge, tmp_path: Path
) -> None:
    (tmp_path / "unreadable").mkdir()
    place = tmp_path / machine if machine == "unreadable" else machine
    got, out = judge(place, "--format", "json")
    report: dict[str, Any] = json.loads(out)
    assert got == status and out.count("\n") == 1
    assert report["schema"] == "laggard.report/1"
    assert report["verdict"] == {0: "ok", 1: "fail", 2: "unknown"}[status]
    assert set(report) == {"schema", "verdict", "node", "elapsed_seconds", "probes", "findings", "facts"}
    for result in report["probes"]:
        assert set(result) == {"name", "verdict", "reason", "elapsed_seconds", "findings", "unknown"}


def healthcheck(*words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-m", "laggard", "healthcheck", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_probe_that_hangs_is_named_in_time(tmp_path: Path) -> None:
    """A pipe that nobody writes to makes its reader hang, as a dead file server does."""
    machine = materialise("plain", tmp_path / "machine")
    (machine / "proc/self/mounts").unlink()
    os.mkfifo(machine / "proc/self/mounts")
    words = ("--host-root", str(machine), "--deadline", "0.9", *EVERY_OTHER)
    until = time.monotonic() + 200
    verdicts: dict[str, str] = {}
    while verdicts.get("limits") != "ok" or verdicts.get("clock") != "ok":  # a busy machine may hold them up as well
        assert time.monotonic() < until, verdicts
        done = healthcheck(*words, "--format", "json")
        report = json.loads(done.stdout)
        verdicts = {result["name"]: result["verdict"] for result in report["probes"]}
        assert (done.returncode, done.stderr) == (2, "")
    assert verdicts == {"limits": "ok", "clock": "ok", "disks": "unknown"}
    assert re.match(r"probe disks gave no answer in 0\.\d s", report["probes"][2]["reason"]), report["probes"][2][
        "reason"
    ]
    assert report["elapsed_seconds"] < 150  # 0.7 on an idle machine; the pipe hangs for good
    told = re.compile(r"laggard: unknown, probe disks gave no answer in 0\.\d s")
    while not told.match(text := healthcheck(*words).stdout):
        assert time.monotonic() < until, text


def test_the_live_machine_gets_an_answer() -> None:
    done = healthcheck("--format", "json")
    report = json.loads(done.stdout)
    assert done.returncode in (0, 1, 2) and done.stderr == ""
    assert report["node"] and [result["name"] for result in report["probes"]] == NAMES


COMPILED_AT_IMPORT = """
import re, sys
found, compiled = [], re.compile
def noted(*words, **named):
    frame = sys._getframe(1)
    if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"].startswith("laggard.probes."):
        found.append(frame.f_globals["__name__"])
    return compiled(*words, **named)
re.compile = noted
import laggard.gate.command
assert "laggard.probes.gpu.xid" in sys.modules
print(*sorted(set(found)))
"""


def test_no_probe_compiles_a_regular_expression_before_it_needs_it() -> None:
    """Together they took a tenth of the gate's time. laggard.kit.words compiles at the first use."""
    done = subprocess.run([sys.executable, "-c", COMPILED_AT_IMPORT], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_the_gate_imports_nothing_heavy() -> None:
    done = healthcheck(options=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "laggard.probes.runner.runner" in imported
    heavy = {
        "torch",
        "prometheus_client",
        "deepspeed",
        "numpy",
        "yaml",
        "psutil",
        "pynvml",
        "asyncio",
        "http.client",
        "rich",
        "shlex",
        "laggard.wire.accepted",
    }
    assert not heavy & imported


def test_a_late_gate_says_one_thing_alone(tmp_path: Path) -> None:
    """Fifty prologs at once: Python starts late, and the script has said by then that there is no answer. The time is
    counted from the start of the process, as the script counts it."""
    root = materialise("plain", tmp_path / "machine")
    words = f"healthcheck --host-root {root} --only disks --gate enforce --collector none --deadline 1"
    command = ["bash", "-c", f"sleep 2; exec {sys.executable} -m laggard {words}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "gate: pass, no answer was there in time\n"), done.stderr
