"""What the gate changes in SLURM, and what it leaves alone. scontrol is a script here that logs its arguments;
tests/slurm has the real one."""

import contextlib
import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.fronts import served_by
from support.materialise import materialise
from support.rows import rows

from laggard.cli import main
from laggard.gate.decision import in_one_line
from laggard.gate.slurm import Slurm, SlurmError, is_own_reason, own_reason, parse_node
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.wire import encode
from laggard.wire.nodes import DrainsDocument
from laggard.wire.words import headline

pytestmark = pytest.mark.usefixtures("without_processes")

SHOW = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=8
   CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=1.00
   NodeAddr=127.0.0.1 NodeHostName=vm Version=22.05.8
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=debug
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
{reason}
"""


class Scontrol:
    """Stands in for scontrol: shows a node in a given state, and logs the arguments of each update."""

    def __init__(self, folder: Path) -> None:
        self.path, self._node, self._log = folder / "scontrol", folder / "node", folder / "log"
        self._config, self._prolog = folder / "config", folder / "prolog.sh"
        self.configure()
        self.set("IDLE")

    def configure(self, **settings: str) -> None:
        """Sets what `show config` prints: what the gate needs, and what differs from it."""
        needed = {
            "Prolog": str(self._prolog),
            "HealthCheckProgram": "/etc/laggard/slurm/healthcheck.sh",
            "HealthCheckInterval": "300 sec",
            "SchedulerParameters": "nohold_on_prolog_fail",
            "PrologFlags": "Alloc,DeferBatch",
            "Epilog": "(null)",
        }
        self._prolog.touch()
        self._config.write_text("".join(f"{name} = {value}\n" for name, value in (needed | settings).items()))

    def set(self, state: str, reason: str = "", answer: str | None = None) -> None:
        line = f"   Reason={reason} [root@2026-11-20T10:00:00]" if reason else ""
        self._node.write_text(SHOW.format(state=state, reason=line))
        default = f'[ "$2" = config ] && exec cat {shlex.quote(str(self._config))}\n'
        default += f'[ "$1" = show ] && exec cat {shlex.quote(str(self._node))}\nprintf "%s\\n" "$@" >> {self._log}\n'
        self.path.write_text(f"#!/bin/sh\n{default if answer is None else answer}")
        self.path.chmod(0o755)

    @property
    def updates(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


@pytest.fixture
def scontrol(tmp_path: Path) -> Scontrol:
    return Scontrol(tmp_path)


Gate = Callable[..., tuple[int, str]]


@pytest.fixture
def gate(
    scontrol: Scontrol, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Gate:
    """Runs the gate with the probe `disks` on a recorded machine. Returns exit status and stdout."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))  # each test begins without memory

    def run(machine: str, *words: str) -> tuple[int, str]:
        root = tmp_path / "machine" / machine
        if not root.exists():
            materialise(machine, root)
        capsys.readouterr()
        common = ["--host-root", str(root), "--only", "disks", "--scontrol", str(scontrol.path)]
        switch = ["--kill-switch", str(tmp_path / "disabled")]
        status = main(["healthcheck", *common, *switch, "--slurm-node", "n1", *words])
        return status, capsys.readouterr().out

    return run


DRAIN = ("--drain", "--collector", "none")
OURS = own_reason("laggard: DISK_FULL / 99 % used")
"""A reason as laggard writes it."""


@rows("gate/exit_status")
def test_exit_status_by_mode(gate: Gate, machine: str, words: tuple[str, ...], status: int, last: str) -> None:
    got, out = gate(machine, *words)
    assert got == status and out.splitlines()[-1].startswith(last)
    assert len(out.splitlines()[0]) <= 80


@pytest.mark.parametrize("profile", ["prolog", "epilog", "periodic", "full"])
def test_unknown_rejects_nothing_whatever_the_profile(gate: Gate, profile: str, tmp_path: Path) -> None:
    gate("plain")
    (tmp_path / "machine/plain/proc/self/mounts").unlink()
    assert gate("plain", "--profile", profile)[0] == 2
    status, out = gate("plain", "--profile", profile, "--gate", "enforce", "--collector", "none")
    assert status == 0 and out.startswith("laggard: unknown, disks: ")
    assert out.endswith("gate: pass, what is unknown rejects no job\n")


def test_warnings_reject_nothing_even_where_they_fail(gate: Gate, tmp_path: Path) -> None:
    strict = tmp_path / "strict.yaml"
    strict.write_text("warnings_fail: true\nunknown: fail\n")
    assert gate("disk_nearly_full", "--profile", str(strict))[0] == 1
    status, out = gate("disk_nearly_full", "--profile", str(strict), "--gate", "enforce", "--collector", "none")
    assert (status, out.splitlines()[-1]) == (0, "gate: pass, warnings alone")


def test_the_reason_of_a_drain_is_the_first_line(gate: Gate, scontrol: Scontrol) -> None:
    status, out = gate("disk_full", *DRAIN)
    reason = out.splitlines()[0]
    assert status == 1 and out.endswith("slurm: n1 was drained\n")
    assert scontrol.updates == ["update", "NodeName=n1", "State=DRAIN", f"Reason={own_reason(reason)}"]
    assert reason.startswith("laggard: DISK_FULL /") and len(reason) <= 80


def test_without_the_flag_scontrol_is_not_run(gate: Gate, scontrol: Scontrol, tmp_path: Path) -> None:
    scontrol.set("IDLE", answer=f"touch {tmp_path}/ran")
    gate("disk_full", "--gate", "enforce", "--collector", "none")
    gate("plain", *DRAIN)
    gate("disk_full", "--gate", "report-only", "--drain", "--resume")
    gate("plain", "--gate", "report-only", "--drain", "--resume")
    assert not (tmp_path / "ran").exists()


@rows("gate/held_nodes")
def test_nodes_that_others_hold_are_left_alone(gate: Gate, scontrol: Scontrol, state: str, reason: str) -> None:
    scontrol.set(state, reason)
    status, out = gate("disk_full", *DRAIN)
    assert status == 1 and scontrol.updates == [] and out.splitlines()[-1].startswith("slurm: n1 ")


@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "MIXED", "MIXED+COMPLETING", "IDLE+CLOUD"])
def test_a_node_in_use_is_drained(gate: Gate, scontrol: Scontrol, state: str) -> None:
    scontrol.set(state)
    gate("disk_full", *DRAIN)
    assert "State=DRAIN" in scontrol.updates


@rows("gate/resumed_drains")
def test_only_own_drains_are_resumed(gate: Gate, scontrol: Scontrol, state: str, reason: str, resumed: bool) -> None:
    scontrol.set(state, reason.format(ours=OURS, edited=OURS.replace("99 %", "99 % (bob looks at it)")))
    assert gate("plain", "--resume")[0] == 0
    assert scontrol.updates == (["update", "NodeName=n1", "State=RESUME"] if resumed else [])


def test_a_failed_or_unknown_node_is_not_resumed(gate: Gate, scontrol: Scontrol, tmp_path: Path) -> None:
    scontrol.set("IDLE+DRAIN", OURS)
    gate("disk_full", "--resume")
    gate("plain")
    (tmp_path / "machine/plain/proc/self/mounts").unlink()
    gate("plain", "--resume")
    assert scontrol.updates == []


def test_what_was_unknown_before_the_drain_does_not_hold_the_resume(
    gate: Gate, scontrol: Scontrol, tmp_path: Path
) -> None:
    """As a mount point that is hidden below a later mount; what becomes unknown after the drain does."""
    for machine in ("plain", "disk_full"):
        root = materialise(machine, tmp_path / "machine" / machine)
        mounts = root / "proc/self/mounts"
        text = mounts.read_text()
        mounts.unlink()
        mounts.write_text(f"{text}x /mnt/a/b tmpfs rw 0 0\n")
    scontrol.set("IDLE")
    assert gate("disk_full", "--gate", "enforce", *DRAIN)[0] == 1 and len(scontrol.updates) == 4
    scontrol.set("IDLE+DRAIN", OURS)
    plain = tmp_path / "machine/plain/proc/self/mounts"
    kept = plain.read_text()
    plain.write_text(f"{kept}x /mnt/c tmpfs rw 0 0\n")
    gate("plain", "--resume")
    assert scontrol.updates[-1] != "State=RESUME", "another mount cannot be read, either"
    plain.write_text(kept)
    gate("plain", "--resume")
    assert scontrol.updates[-1] == "State=RESUME"


def test_a_slurmctld_that_is_away_is_no_wrong_setup(gate: Gate, scontrol: Scontrol) -> None:
    scontrol.set("IDLE", answer="echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    out = gate("plain", "--gate", "enforce", *DRAIN, "--check-gate")[1]
    assert "gate: setup not checked: slurmctld does not answer" in out and "WRONG SETUP" not in out


def test_a_reason_counts_critical_findings_alone(gate: Gate) -> None:
    """Nor is a warning what the node is drained for."""
    finding = Finding("GPU_LOST", Severity.CRITICAL, "GPU 3", "is lost", {}, Fix(""), "")
    warning = replace(finding, code="CLOCK_SKEW", severity=Severity.WARNING)
    probe = ProbeResult("x", Verdict.FAIL, "", 0.0, (0, 1))
    report = Report(Verdict.FAIL, "n1", 0.0, (probe,), (warning, finding), {})
    assert headline(report) == "laggard: GPU_LOST GPU 3 is lost"
    of_user = replace(finding, code="DISK_FULL", action="USER")
    assert headline(replace(report, findings=(of_user, warning))) == "laggard: user: DISK_FULL GPU 3 is lost"
    assert headline(replace(report, findings=(of_user, finding))) == "laggard: GPU_LOST GPU 3 is lost (+1 more)"


@pytest.mark.slow
@rows("gate/controllers_away")
def test_a_controller_that_is_away_costs_little(gate: Gate, scontrol: Scontrol, answer: str, message: str) -> None:
    scontrol.set("IDLE", answer=answer)
    started = time.monotonic()
    status, out = gate("disk_full", "--gate", "enforce", *DRAIN)
    assert time.monotonic() - started < 150  # the gate's own time and 3 s, and not the 300 s
    assert status == 1 and message in out and out.endswith("gate: reject\n")  # SLURM drains by the exit status


def test_a_missing_scontrol_is_reported(gate: Gate) -> None:
    assert (
        "slurm: not drained: cannot run /nowhere/scontrol: No such"
        in gate("disk_full", *DRAIN, "--scontrol", "/nowhere/scontrol")[1]
    )


def test_the_kill_switch_comes_first(gate: Gate, scontrol: Scontrol, tmp_path: Path) -> None:
    (tmp_path / "disabled").symlink_to("/nowhere")  # a dangling symlink counts too
    for words in (DRAIN, ("--resume",), ("--gate", "enforce", "--collector", "none")):
        status, out = gate("disk_full", *words)
        assert (status, out) == (0, f"gate: switched off by {tmp_path / 'disabled'}\n")
    status, out = gate("disk_full", *DRAIN, "--format", "json")
    assert status == 0 and json.loads(out)["schema"] == "laggard.report/1"
    assert gate("disk_full")[0] == 1, "who asks without SLURM gets an answer"
    assert scontrol.updates == []


def test_a_drain_needs_the_collector_flag(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("disk_full", "--drain")[0] == 64
    assert gate("disk_full", "--gate", "report-only", "--drain")[0] == 0
    assert gate("disk_full", *DRAIN, "--scontrol", "scontrol")[0] == 64


def test_json_holds_what_was_done(gate: Gate) -> None:
    status, out = gate("disk_full", "--gate", "enforce", *DRAIN, "--format", "json")
    assert status == 1 and out.count("\n") == 1
    assert json.loads(out)["facts"]["gate"]["says"] == ["slurm: n1 was drained", "gate: reject"]


@given(st.text(), st.text(min_size=1))
def test_a_reason_is_laggards_own_only_as_it_was_written(text: str, added: str) -> None:
    reason = own_reason(f"laggard: {text}".replace("\n", " "))
    assert is_own_reason(reason) and not is_own_reason(reason + added) and not is_own_reason(added + reason)


@given(st.text())
def test_any_text_is_a_node_or_a_refusal(text: str) -> None:
    with contextlib.suppress(SlurmError):
        node = parse_node(text)
        assert f"State={node.base}" in text or node.base in text, "a state that is not in the text"


def test_a_reason_cannot_pose_as_a_state() -> None:
    node = parse_node(
        SHOW.format(state="IDLE", reason="   Reason=x State=DOWN Reason=laggard: y [a@2026-01-01T00:00:00]")
    )
    assert (node.base, node.reason) == ("IDLE", "x State=DOWN Reason=laggard: y") and not node.has_laggards_reason


def test_arguments_reach_scontrol_unchanged(scontrol: Scontrol, tmp_path: Path) -> None:
    reason = "laggard: $(touch y) `touch z` 'quoted' \"too\""
    slurm = Slurm("n1; touch x", str(scontrol.path))
    slurm.drain(slurm.show(), reason)
    assert scontrol.updates[1:] == ["NodeName=n1; touch x", "State=DRAIN", f"Reason={own_reason(reason)}"]
    assert {"x", "y", "z"}.isdisjoint(os.listdir(tmp_path)) and {"x", "y", "z"}.isdisjoint(os.listdir("."))


def test_a_gate_without_a_collector_complains_each_time(gate: Gate) -> None:
    for machine in ("disk_full", "plain"):
        status, out = gate(machine, "--gate", "enforce", "--drain")
        assert status == 0 and "gate: WRONG SETUP: no collector is named" in out and "gate: pass" in out
    assert "WRONG SETUP" not in gate("plain", "--gate", "report-only")[1]


def test_in_a_prologs_log_stands_the_answer_and_the_decision(gate: Gate) -> None:
    out = gate("disk_full", "--gate", "report-only")[1]
    assert len(out.splitlines()) == 2 and "DISK_FULL" in out
    assert len(gate("disk_full", "--gate", "report-only", "--verbose")[1].splitlines()) > 2


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        (("slurm: n1 was drained", "gate: reject"), "drain: laggard: X; slurm: n1 was drained"),
        (("gate: unfit",), "drain: laggard: X"),
        (("gate: WRONG SETUP: Y", "gate: pass, report-only"), "pass: report-only; laggard: X; gate: WRONG SETUP: Y"),
        (("slurm: n1 was resumed",), "laggard: X; slurm: n1 was resumed"),
    ],
)
def test_the_systems_log_begins_with_the_decision(messages: tuple[str, ...], line: str) -> None:
    assert in_one_line("laggard: X", messages) == line


@pytest.mark.parametrize(
    ("known", "complaint"),
    [(None, "does not answer"), (["elsewhere"], "it knows: elsewhere"), (["HERE"], "")],
    ids=["away", "another_name", "right"],
)
def test_the_gate_checks_its_own_setup(
    gate: Gate, fake_agent: Callable[..., object], known: list[str] | None, complaint: str, scontrol: Scontrol
) -> None:
    """A server with the collector's document on the nodes stands in for a collector."""
    here = json.loads(gate("plain", "--format", "json")[1])["node"]
    nodes = [{"node": here if name == "HERE" else name} for name in known or ()]
    collector = fake_agent(b"")
    collector.answer = lambda path: None if known is None else json.dumps({"nodes": nodes}).encode()  # type: ignore[attr-defined]
    url = collector.url  # type: ignore[attr-defined]
    status, out = gate("plain", "--check-gate", "--collector", url)
    assert (status, complaint in out, "set up" in out) == (1 if complaint else 0, True, not complaint), out
    assert ("WRONG SETUP" in gate("plain", "--gate", "enforce", "--collector", url, "--check-gate")[1]) == bool(
        complaint
    )
    flags = ("--gate-flags", "--expect", os.devnull)
    assert f"FLAGS has --expect {os.devnull}" in gate("plain", "--check-gate", "--collector", url, *flags)[1]
    scontrol.set("IDLE", answer="echo slurm_load_node: no >&2; exit 1\n")
    status, out = gate("plain", "--check-gate", "--collector", "none")
    assert status == 1 and "set SLURM_CONF in gate.conf" in out
    scontrol.set("IDLE", answer="echo 'Node n1 not found' >&2; exit 1\n")
    assert "gate: SLURM has no node n1: " in gate("plain", "--check-gate", "--collector", "none")[1]
    out = gate("plain", "--check-gate", "--collector", "none", "--scontrol", "/nowhere/scontrol")[1]
    assert "cannot run /nowhere/scontrol: No such file or directory; where scontrol is elsewhere, set SCONTROL" in out


@rows("gate/slurm_lines")
def test_slurms_lines_that_keep_the_gate_from_its_work(
    gate: Gate, scontrol: Scontrol, settings: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laggard.gate.slurm_config.SHARED_RANK_DIR", "/nowhere/ranks")
    scontrol.configure(**settings)
    status, out = gate("plain", "--check-gate", "--gate-seconds", "15", "--collector", "none")
    assert status == 1 and complaint in out and out.count("\n") == 1, out


@rows("gate/conf_mistakes")
def test_mistakes_in_gate_conf_with_which_every_job_passes(gate: Gate, words: tuple[str, ...], complaint: str) -> None:
    status, out = gate("plain", "--check-gate", "--collector", "none", *words)
    assert status == 1 and complaint in out and out.count("\n") == 1, out


def test_the_gangs_secret_is_looked_at_where_the_gangs_prolog_runs(
    gate: Gate, scontrol: Scontrol, tmp_path: Path
) -> None:
    token = tmp_path / "gang-token"
    words = ("--check-gate", "--collector", "none", "--gang-token", str(token))
    assert gate("plain", *words)[0] == 0
    (tmp_path / "prolog-gang.sh").touch()
    scontrol.configure(Prolog=f"{tmp_path}/prolog-gang.sh")
    assert f"there is no GANG_TOKEN={token}" in gate("plain", *words)[1]
    token.touch(mode=0o600)
    assert gate("plain", *words)[0] == 0


def test_the_check_ends_with_what_the_gate_does(gate: Gate, tmp_path: Path) -> None:
    check = ("--check-gate", "--collector", "none", "--gate-mode")
    assert gate("plain", *check, "enforce") == (0, "gate: set up, enforce: SLURM knows n1; no cap\n")
    assert gate("plain", *check, "report-only") == (0, "gate: set up, report-only: SLURM knows n1; no cap\n")
    (tmp_path / "disabled").touch()
    status, out = gate("plain", *check, "enforce")
    assert status == 1 and out.startswith(f"gate: switched off by {tmp_path}/disabled: "), out


def test_a_collector_that_is_none_and_one_that_nobody_can_reach_are_told(
    gate: Gate, fake_agent: Callable[..., object]
) -> None:
    agent = fake_agent(b"")
    agent.answer = lambda path: None  # type: ignore[attr-defined]
    url = agent.url  # type: ignore[attr-defined]
    out = gate("plain", "--check-gate", "--collector", url)[1]
    assert "HTTP 404: this is no collector, whose port is 19401 by default; an agent's is 19400" in out, out
    out = gate("plain", "--check-gate", "--collector", "http://127.0.0.1:1/")[1]
    assert "the collector http://127.0.0.1:1 does not answer: Connection refused; is it up, and does its" in out, out


def refusing_collector(fake_agent: Callable[..., object], **about_asker: bool) -> str:
    """The URL of a server that stands in for a collector whose cap is reached."""
    document = DrainsDocument(False, "of 3 nodes 1 fail", 3, 3, 1, 1, 0.05, **about_asker)
    collector = fake_agent(b"")
    collector.answer = lambda path: encode(document)  # type: ignore[attr-defined]
    return str(collector.url)  # type: ignore[attr-defined]


def test_a_node_that_the_collector_does_not_know_is_told_before_the_cap(
    gate: Gate, fake_agent: Callable[..., object]
) -> None:
    url = refusing_collector(fake_agent, asker_known=False)
    last = gate("disk_full", "--gate", "enforce", "--drain", "--collector", f"{url}/")[1].splitlines()[-1]
    assert last.startswith(f"gate: pass, not drained: the collector {url} knows no node "), last


def test_a_health_check_speaks_of_its_node_and_of_no_job(
    gate: Gate, scontrol: Scontrol, fake_agent: Callable[..., object]
) -> None:
    """A node that laggard has drained stays drained, whatever the cap says, and is told of once."""
    check = ("--gate", "enforce", "--drain", "--resume", "--collector")
    scontrol.set("IDLE+DRAIN", OURS)
    assert gate("disk_full", *check, "none")[1].splitlines()[1:] == [
        "slurm: n1 is drained already, for that",
        "gate: unfit",
    ]
    url = refusing_collector(fake_agent, asker_fails=True)
    last = gate("disk_full", *check, url)[1].splitlines()[-1]
    assert last == f"gate: pass, n1 stays drained: {OURS}"
    scontrol.set("IDLE")
    assert gate("disk_full", *check, url)[1].splitlines()[-1].startswith("gate: pass, not drained: the cap on drains")


def test_a_collector_that_is_asked_under_another_name_says_so_in_one_line(gate: Gate) -> None:
    """Whatever it says, it rejects no job: gate.sh takes a line `gate: reject` for a verdict."""
    body = b"gpu-head is not a name of this collector: list it under allowed_hosts\ngate: reject\n"
    with served_by(lambda *_: (421, body)) as url:
        out = gate("plain", "--check-gate", "--collector", url)[1]
    assert "HTTP 421: gpu-head is not a name of this collector: list it under allowed_hosts gate: reject;" in out, out
