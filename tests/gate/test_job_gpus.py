"""A job that has some of the GPUs is judged by those, and by what all GPUs share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.materialise import materialise
from support.rows import rows

from laggard.cli import main
from laggard.gate.measure import for_job, parse_gpus
from laggard.model import Finding, Fix, Report, Severity, Verdict
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds
from laggard.probes.runner.runner import run

pytestmark = pytest.mark.usefixtures("without_processes")

MINORS = {"0": "0000:19:00.0", "1": "0000:3b:00.0", "5": "0000:bb:00.0"}
THEIRS, MINE, SHARED = "GPU 5 (0000:bb:00.0)", "GPU 0 (0000:19:00.0)", "mlx5_3 port 1"


def found(device: str, severity: Severity = Severity.CRITICAL) -> Finding:
    return Finding("GPU_XID", severity, device, "is ill", {}, Fix("mend it"), "docs/findings/GPU_XID.md")


def report(*findings: Finding, unknown: str = "", warnings_fail: bool = False) -> Report:
    """What the runner reports of a probe with these findings, beside one that found nothing."""
    facts = [Fact("minors", MINORS)]

    def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
        yield from (*findings, *facts)
        if unknown:
            raise Unknown(unknown)

    def check_nothing(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
        yield from ()

    probes = (Probe("disks", check_nothing, Thresholds(), 60.0), Probe("gpu_count", check, Thresholds(), 60.0))
    return run(Host(), probes, deadline_seconds=60.0, warnings_fail=warnings_fail)


@rows("gate/findings_that_count")
def test_which_findings_count(devices: tuple[str, ...], unknown: str, verdict: str) -> None:
    judged = for_job(report(*map(found, devices), unknown=unknown), frozenset({0, 1}), False)
    assert judged.verdict == verdict
    assert [finding.device for finding in judged.findings] == [
        device for device in devices if "bb:00.0" not in device or "19:00.0" in device
    ]


MANY = [f"GPU {number} (0000:bb:00.0), a device with a long name" for number in range(20)]
SEMICOLONS = "/mnt/a; GPU_XID GPU 5 (0000:bb:00.0); b"


@pytest.mark.parametrize(
    ("devices", "unknown", "verdict"),
    [
        ([THEIRS, SEMICOLONS.replace("bb:00.0", "")], "", Verdict.FAIL),
        ([THEIRS], f"no access; GPU_XID {THEIRS}", Verdict.UNKNOWN),
        ([THEIRS], f"GPU_XID {THEIRS}", Verdict.UNKNOWN),
        (MANY, "", Verdict.OK),
        ([*MANY, MINE], "", Verdict.FAIL),
    ],
    ids=["in a device", "in what is unknown", "as what is unknown", "too many to name", "too many to name, and mine"],
)
def test_the_words_of_a_reason_decide_nothing(devices: list[str], unknown: str, verdict: Verdict) -> None:
    """A reason is text for people: its separators, and where it is cut off, are no data."""
    judged = for_job(report(*map(found, devices), unknown=unknown), frozenset({0, 1}), False)
    assert judged.verdict is verdict
    assert [finding.device for finding in judged.findings] == [it for it in devices if "bb:00.0" not in it]


@pytest.mark.parametrize(("device", "verdict"), [(THEIRS, Verdict.OK), (MINE, Verdict.FAIL)])
def test_a_warning_that_fails_is_judged_by_its_gpu_too(device: str, verdict: Verdict) -> None:
    made = report(found(device, Severity.WARNING), warnings_fail=True)
    assert made.verdict is Verdict.FAIL
    assert for_job(made, frozenset({0, 1}), True).verdict is verdict


def test_findings_on_other_gpus_stay_among_the_facts() -> None:
    assert for_job(report(found(THEIRS)), frozenset({0}), False).facts["other_gpus"] == [f"GPU_XID {THEIRS}"]


@pytest.mark.parametrize("wanted", [None, frozenset({0, 7})])
def test_all_count_where_the_jobs_gpus_are_not_known(wanted: frozenset[int] | None) -> None:
    assert for_job(report(found(THEIRS)), wanted, False).verdict is Verdict.FAIL


@rows("gate/gpu_lists")
def test_slurms_list(text: str, gpus: tuple[int, ...] | None) -> None:
    assert parse_gpus(text) == (None if gpus is None else frozenset(gpus))


@given(st.frozensets(st.integers(0, 4000), min_size=1, max_size=64))
def test_any_list_is_parsed(gpus: frozenset[int]) -> None:
    assert parse_gpus(",".join(map(str, sorted(gpus)))) == gpus


@given(st.text())
def test_any_text_is_a_list_or_none(text: str) -> None:
    gpus = parse_gpus(text)
    assert gpus is None or all(gpu >= 0 for gpu in gpus)


@pytest.mark.parametrize(("gpus", "status"), [("0-3", 0), ("4-7", 1), ("0-7", 1), ("5", 1), ("0,12", 1)])
def test_a_recorded_machine(gpus: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPU 5 has uncorrected memory errors."""
    root = materialise("gpu_ecc", tmp_path / "gpu_ecc")
    words = ["--host-root", str(root), "--only", "gpu_ecc", "--only", "gpu_count", "--gpus", gpus]
    assert main(["healthcheck", *words]) == status
    assert capsys.readouterr().out.startswith("laggard: ok, 2 probes" if status == 0 else "laggard: GPU_ECC")


def test_expected_values_override_the_profiles(tmp_path: Path) -> None:
    root = materialise("disk_full", tmp_path / "disk_full")
    profile, expect = tmp_path / "profile.yaml", tmp_path / "expect.yaml"
    profile.write_text("thresholds: {disks: {enough_bytes: 1000, warning_used_ratio: 0.5}}\n")
    words = ["healthcheck", "--host-root", str(root), "--only", "disks", "--profile", str(profile)]
    assert main(words) == 0
    expect.write_text("thresholds: {disks: {enough_bytes: 68719476736}}\n")
    assert main([*words, "--expect", str(expect)]) == 1
