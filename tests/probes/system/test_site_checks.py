"""SITE_CHECK_FAILED: real programs run as a site's checks, through the whole gate; and NHC's lines as they are.

NHC is its own, where NHC_FOLDER names a folder with `nhc` and `scripts` (github.com/mej/nhc), else a stand-in of a few
lines, which has of NHC what laggard relies on: `-e`, nhc_load_conf, CHECKS, die, CHECK_DIED and NHC_CHECK_ALL.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.judge import judge_host
from support.nhc import nhc_settings
from support.rows import rows
from support.waiting import wait_for

from laggard.agent.prober.known import variant_names
from laggard.cli import main
from laggard.kit.processes import read_stat
from laggard.probes.choose import choose_probes, gate_probes
from laggard.probes.host.host import Host
from laggard.probes.profiles import covers, find_profile
from laggard.probes.record.journal import write_documents
from laggard.probes.record.recorder import RecordingHost
from laggard.probes.system import site_checks
from laggard.probes.system.site_checks import PROBE, SiteThresholds

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as whom the checks run")

Check = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAGGARD_NODE", "gpu-007.example.org")
    monkeypatch.setenv("SECRET", "of the caller")
    return tmp_path


@pytest.fixture
def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """The report of `laggard healthcheck` with this file of checks; `flags` go to the command."""

    def run(text: str, *flags: str, status: int | None = None) -> dict[str, Any]:
        (folder / "checks.yaml").write_text(text)
        (folder / "expect.yaml").write_text(f"thresholds: {{site_checks: {{file: {folder}/checks.yaml}}}}\n")
        words = ["--only", "site_checks", "--expect", str(folder / "expect.yaml"), "--format", "json"]
        capsys.readouterr()
        exited = main(["healthcheck", *words, *flags])
        assert status is None or exited == status
        return dict(json.loads(capsys.readouterr().out))

    return run


def program(path: Path, body: str, mode: int = 0o755) -> Path:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(mode)
    return path


def found(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    assert {each["code"] for each in report["findings"]} <= {"SITE_CHECK_FAILED"}
    return [(each["severity"], each["device"], each["summary"]) for each in report["findings"]]


def unknown(report: Mapping[str, Any]) -> str:
    return str(report["probes"][0]["unknown"])


@rows("probes/programs")
def test_what_a_program_does_and_what_it_means(
    body: str, status: str, said: tuple[tuple[str, str, str], ...], why: str, check: Check, folder: Path
) -> None:
    run = program(folder / "it", body)
    seconds = {"sleep 60": 0.5, "yes": 5}.get(body, 50)
    line = f"{{run: {run}, seconds: {seconds}{f', status: {status}' if status else ''}}}"
    report = check(f"checks: {{it: {line}}}\n")
    assert (found(report), why in unknown(report), bool(why)) == (list(said), True, bool(unknown(report))), unknown(
        report
    )
    assert report["verdict"] == ("fail" if any(it[0] == "critical" for it in said) else "unknown" if why else "ok")


def test_nothing_that_it_started_is_left(check: Check, folder: Path) -> None:
    run = program(folder / "it", f"sleep 61 & echo $! $$ >{folder}/pids; wait")
    check(f"checks: {{it: {{run: {run}, seconds: 0.5}}}}\n")
    for pid in (folder / "pids").read_text().split():
        wait_for(lambda pid=pid: (it := read_stat(pid)) is None or it.has_ended, lambda pid=pid: f"{pid} still runs")


def test_checks_run_side_by_side(check: Check, folder: Path) -> None:
    """Each waits for all others."""
    names = [f"c{number}" for number in range(8)]
    wait = "\n".join(f"until [ -e {folder}/{name}.runs ]; do sleep 0.01; done" for name in names)
    lines = [
        f"  {name}: {{run: {program(folder / name, f'touch {folder}/{name}.runs; {wait}')}, seconds: 20}}\n"
        for name in names
    ]
    report = check("checks:\n" + "".join(lines))
    assert report["facts"]["site_checks"]["checks"] == dict.fromkeys(names, "ok")


def test_a_program_gets_its_words_no_input_and_a_clean_environment(check: Check, folder: Path) -> None:
    run = program(folder / "it", 'echo "$#,$1,$2,$SECRET,$LAGGARD_NODE,$PWD,$PATH,$(cat)"; exit 1')
    report = check(f"checks: {{it: {{run: \"{run} 'a  b' $HOME\"}}}}\n")
    words = "2,a b,$HOME,,gpu-007.example.org,/,/usr/sbin:/usr/bin:/sbin:/bin,"
    assert found(report) == [("critical", "it", words)]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.chmod(0o757), "others may write {path}: chown root and chmod go-w it"),
        (lambda path: os.chown(path, 1000, 0), "others may write {path}"),
        (lambda path: path.parent.chmod(0o777), "others may write {path.parent}"),
        (lambda path: path.chmod(0o644), "cannot be run: Permission denied"),
        (lambda path: path.write_text("exit 1\n"), "cannot be run: Exec format error"),
        (lambda path: path.unlink(), "cannot be used: No such file or directory; put it there"),
    ],
)
def test_a_program_that_root_must_not_or_cannot_run_is_unknown(
    spoil: Callable[[Path], object], why: str, check: Check, folder: Path
) -> None:
    (folder / "bin").mkdir()
    path = program(folder / "bin/it", "exit 1")
    spoil(path)
    report = check(f"checks: {{it: {{run: {path}}}}}\n", status=2)
    assert why.format(path=path) in unknown(report) and not report["findings"]


@rows("probes/site_check_mistakes")
def test_a_file_with_a_mistake_is_one_line_and_runs_nothing(text: str, why: str, check: Check, folder: Path) -> None:
    report = check(text, status=2)
    assert why in unknown(report) and str(folder / "checks.yaml") in unknown(report) and not report["findings"]


def test_a_file_that_others_may_write_runs_nothing(check: Check, folder: Path) -> None:
    (folder / "checks.yaml").touch()
    (folder / "checks.yaml").chmod(0o666)
    report = check("checks: {it: {run: /bin/false}}\n", status=2)
    assert "checks.yaml is not used by root, since others may write" in unknown(report)


def test_no_check_for_this_node_is_nothing(check: Check) -> None:
    report = check("checks: {it: {run: /bin/false, nodes: 'cpu*'}}\n")
    assert report["verdict"] == "skipped" and "has no check for this node" in report["probes"][0]["reason"]


@rows("probes/node_names")
def test_nodes_are_named_as_slurm_and_nhc_do(nodes: str, node: str, is_meant: bool) -> None:
    assert covers(nodes, node) is is_meant


def test_a_failed_check_drains_as_any_other_finding_and_is_accepted_as_one(check: Check, folder: Path) -> None:
    lines = f"checks: {{ib: {{run: {program(folder / 'it', 'echo rail 3 is slow; exit 1')}}}}}\n"
    gate = ("--gate", "enforce", "--collector", "none")
    assert check(lines, *gate, status=1)["facts"]["gate"]["says"][-1] == "gate: reject"
    accepted = ["--accepted", str(folder / "accepted.json")]
    words = ["--accept", "SITE_CHECK_FAILED:ib", "--until", "1h", "--reason", "ticket 7"]
    assert main(["healthcheck", *accepted, *words]) == 0
    report = check(lines, *gate, *accepted, status=0)
    assert found(report)[0][0] == "warning" and "ticket 7" in found(report)[0][2]


def test_a_hanging_check_does_not_delay_the_gate_beyond_its_deadline(check: Check, folder: Path) -> None:
    lines = (
        f"checks: {{slow: {{run: {program(folder / 'slow', 'sleep 600')}, seconds: 60}},"
        f"bad: {{run: {program(folder / 'bad', 'exit 1')}}}}}\n"
    )
    report = check(lines, "--gate", "enforce", "--collector", "none", "--deadline", "4", status=1)
    assert [device for _, device, _ in found(report)] == ["bad"] and "slow: " in unknown(report)
    assert report["elapsed_seconds"] < 60, "the check's own time was not waited for"


def test_a_prolog_takes_the_agents_word_for_it() -> None:
    """The agent runs the same checks as a prolog would, and none of them a second time for it."""
    assert PROBE.name in {probe.name for probe in gate_probes()}
    assert PROBE.name not in variant_names(choose_probes(find_profile("periodic"), (), (), ""))


def test_a_recorded_machine_says_what_its_checks_said(check: Check, folder: Path) -> None:
    report = check(f"checks: {{ib: {{run: {program(folder / 'it', 'echo slow; exit 1')}}}}}\n")
    probe = PROBE._replace(thresholds=SiteThresholds(file=str(folder / "checks.yaml")))
    recorded = folder / "recorded"
    (recorded / "laggard").mkdir(parents=True)
    judge_host(RecordingHost("/", str(recorded)), [probe])
    write_documents(str(recorded), {"time": 0.0, "environ": {"LAGGARD_NODE": "gpu-007"}})
    (folder / "it").unlink()
    (replayed,) = judge_host(Host(str(recorded)), [probe]).findings
    assert (replayed.device, replayed.summary) == found(report)[0][1:]


# An agent that is nobody.


@pytest.fixture
def nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(site_checks.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(site_checks, "SOCKET", str(folder / "s"))
    (folder / "file.yaml").write_text("checks: {it: {run: /bin/false}}\n")
    return folder / "file.yaml"


def test_who_is_not_root_is_told_what_root_found(nobody: Path, check: Check, folder: Path) -> None:
    probe = PROBE._replace(thresholds=SiteThresholds(file=str(nobody)))
    answer = json.dumps({
        "verdict": "fail", "node": "n1", "elapsed_seconds": 1.0, "schema": "laggard.report/1",
        "probes": [{"name": "site_checks", "verdict": "fail", "reason": "", "elapsed_seconds": 1.0, "findings": [0],
                    "unknown": "tape: /opt/tape did not end within 5 s and was killed"}],
        "findings": [{"code": "SITE_CHECK_FAILED", "severity": "critical", "device": "it", "summary": "bad",
                      "evidence": {}, "fix": {"text": "mend it"}, "doc": ""}],
        "facts": {"site_checks": {"checks": {"it": "SITE_CHECK_FAILED it"}}},
    }).encode()  # fmt: skip
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        report = judge_host(Host(), [probe])
    assert [(it.device, it.summary) for it in report.findings] == [("it", "bad")]
    assert report.probes[0].unknown == "tape: /opt/tape did not end within 5 s and was killed"
    assert report.facts["site_checks"]["checks"] == {"it": "SITE_CHECK_FAILED it"}


def test_who_is_not_root_and_has_nobody_to_ask_is_told_how(nobody: Path) -> None:
    report = judge_host(Host(), [PROBE._replace(thresholds=SiteThresholds(file=str(nobody)))])
    assert "systemctl enable --now laggard-checks.socket" in report.probes[0].unknown and not report.findings


# NHC.


@pytest.fixture(params=["a stand-in", "NHC itself"])
def nhc(request: pytest.FixtureRequest, folder: Path) -> str:
    return nhc_settings(folder, itself=request.param == "NHC itself")


def test_nhcs_lines_run_as_they_are(nhc: str, check: Check, folder: Path) -> None:
    (folder / "nhc.conf").write_text(
        f"# as in /etc/nhc\n\n* || export PLACE={folder}/gone\n* || check_file_test -e $PLACE\nno-* || /bin/false\n"
    )
    lines = [
        "* || export MARK_OFFLINE=1 NHC_CHECK_ALL=0 SILENT=1",
        "* || /bin/false",
        "* || check_file_test -e /etc/passwd",
        '* || check_file_test -e "/no  where"',
    ]
    text = json.dumps("\n".join(lines) + "\n")
    report = check(f"nhc: {{{nhc}, conf: {folder}/nhc.conf, lines: {text}}}\n", status=1)
    devices = {device: (severity, said) for severity, device, said in found(report)}
    assert not unknown(report)
    assert devices.keys() == {"check_file_test -e $PLACE", "/bin/false", 'check_file_test -e "/no  where"'}
    assert devices["/bin/false"] == ("critical", "it returned 1")
    assert f"{folder}/gone" in devices["check_file_test -e $PLACE"][1]
    assert not devices["check_file_test -e $PLACE"][1].startswith("check_file_test"), "the device says so already"


def test_a_line_at_which_nhc_hangs_is_named_and_what_failed_before_counts(nhc: str, check: Check) -> None:
    text = json.dumps("* || /bin/false\n* || sleep 60\n* || /bin/true\n")
    for seconds in (1, 4, 16):  # on a busy machine it comes to that line late
        report = check(f"nhc: {{{nhc}, lines: {text}, seconds: {seconds}, severity: warning}}\n", status=2)
        if "sleep" in unknown(report):
            break
    assert found(report) == [("warning", "/bin/false", "it returned 1")]
    assert "s and was killed at `sleep 60`; the lines after it did not run" in unknown(report)


def test_a_line_that_ends_nhc_does_not_pass_for_ok(nhc: str, check: Check) -> None:
    report = check(f"nhc: {{{nhc}, lines: {json.dumps('* || exit 0')}}}\n", status=2)
    assert "ended early at `exit 0`; the lines after it did not run" in unknown(report)


def test_an_nhc_that_cannot_do_it_is_unknown(check: Check, folder: Path) -> None:
    old = program(folder / "nhc", "echo 'nhc Usage'; exit 9")
    report = check(f"nhc: {{program: {old}, lines: '* || /bin/false'}}\n", status=2)
    assert "ended early: is it NHC 1.4.2 or newer?" in unknown(report)
    report = check(f"nhc: {{program: {old}, conf: {folder}/none.conf}}\n", status=2)
    assert "none.conf: No such file or directory" in unknown(report)
