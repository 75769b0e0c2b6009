"""What the gate remembers of a node: a drain that an operator took back is not made again for the same evidence.
scontrol is a script here; tests/slurm has the real one."""

import json
import os
import shlex
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import log_xid
from support.materialise import materialise

from laggard.cli import main
from laggard.gate.memory import (
    FILE_NAME,
    Evidence,
    NodeMemory,
    change_memory,
    drained,
    evidence_of,
    is_from_before_resume,
    load_memory,
    observed,
)
from laggard.gate.slurm import SlurmNode
from laggard.kit.environment import state_dir
from laggard.model import Finding, Fix, Severity

pytestmark = pytest.mark.usefixtures("without_processes")

IDLE = SlurmNode("IDLE", frozenset(), "")
DRAINED = SlurmNode("IDLE", frozenset({"DRAIN"}), "laggard: GPU_XID")
XID = Evidence("GPU_XID", "GPU 0", "xid 109", at=1000.0)
FLAPS = Evidence("RDMA_LINK_FLAPPING", "mlx5_0", count=4)
FULL = Evidence("DISK_FULL", "/")


def resumed(*evidence: Evidence, last_busy: float | None = 1200.0) -> NodeMemory:
    """A node that was drained for `evidence` at 1100, resumed at 1200, and looked at again at 1300."""
    memory = drained(NodeMemory(), evidence, 1100.0)
    return observed(memory, IDLE._replace(last_busy=last_busy), 1300.0, 1300.0)


def test_old_evidence_drains_no_node_that_was_resumed() -> None:
    memory = resumed(XID, FLAPS)
    assert is_from_before_resume(memory, XID) and is_from_before_resume(memory, FLAPS)
    assert not is_from_before_resume(memory, Evidence("GPU_XID", "GPU 0", "xid 109", at=1250.0)), "logged since"
    assert not is_from_before_resume(memory, Evidence("RDMA_LINK_FLAPPING", "mlx5_0", count=5)), "counted since"
    assert not is_from_before_resume(memory, Evidence("RDMA_LINK_FLAPPING", "mlx5_1", count=4)), "another port"
    assert not is_from_before_resume(memory, FULL), "what is true now is newer than any resume"


def test_what_laggard_did_not_drain_for_is_old_as_well() -> None:
    assert is_from_before_resume(resumed(FLAPS), XID)


@pytest.mark.parametrize("last_busy", [None, 900.0, 5000.0], ids=["unknown", "before_the_drain", "in_the_future"])
def test_a_time_that_cannot_be_the_resumes_is_not_taken(last_busy: float | None) -> None:
    assert resumed(last_busy=last_busy).resumed_at == 1300.0


def test_while_it_is_drained_nothing_is_old() -> None:
    memory = observed(resumed(XID), DRAINED, 1400.0, 1400.0)
    assert not is_from_before_resume(memory, XID)


def test_a_drain_that_another_gate_made_meanwhile_is_no_resume() -> None:
    """The node was asked for at 1000, and another gate drained it at 1100, before this one could look at its memory."""
    memory = drained(NodeMemory(), (XID,), 1100.0)
    assert observed(memory, IDLE, 1000.0, 1101.0) == memory


def test_reports_from_before_the_last_change_are_void() -> None:
    assert not NodeMemory().is_older_than_change(1.0)
    assert resumed().is_older_than_change(1150.0) and not resumed().is_older_than_change(1250.0)
    assert drained(NodeMemory(), (), 1100.0).is_older_than_change(1e12), "it was resumed since, nobody knows when"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"boot_id": "b", "nodes": {"n1": {"seen_drain',
        b"\xff\x00",
        b"[" * 100_000,
        b'{"boot_id": "b", "nodes": {"n1": {"resumed_at": 1e999}}}',
        b'{"boot_id": "b", "nodes": {"n1": {"evidence": [7]}}}',
        b'{"boot_id": "of another boot", "nodes": {"n1": {"seen_drained_at": 5}}}',
    ],
    ids=["empty", "half", "bytes", "nested", "infinite", "types", "boot"],
)
def test_a_file_that_is_damaged_or_of_another_boot_is_no_memory(content: bytes) -> None:
    change_memory("n1", "b", lambda memory: resumed(XID))
    assert load_memory("n1", "b") == resumed(XID)
    (Path(state_dir(os.environ)) / FILE_NAME).write_bytes(content)
    assert load_memory("n1", "b") == NodeMemory()
    change_memory("n1", "b", lambda memory: resumed(FLAPS))
    assert load_memory("n1", "b") == resumed(FLAPS)


def test_a_file_that_others_may_write_is_not_read() -> None:
    change_memory("n1", "b", lambda memory: resumed(XID))
    path = Path(state_dir(os.environ)) / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o666)
    assert load_memory("n1", "b") == NodeMemory()
    path.chmod(0o600)


def test_two_gates_lose_nothing_of_each_other() -> None:
    change_memory("n1", "c", lambda memory: NodeMemory())

    def add(number: int) -> None:
        change_memory("n1", "c", lambda memory: drained(memory, (Evidence("GPU_XID", f"GPU {number}"),), 1.0))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert {it.device for it in load_memory("n1", "c").evidence} == {f"GPU {number}" for number in range(40)}


def test_the_file_stays_small() -> None:
    many = [Evidence("GPU_XID", f"GPU {number}") for number in range(2000)]
    for number in range(40):
        change_memory(f"n{number}", "d", lambda memory: drained(memory, many[:5], 1.0))
    assert len(drained(NodeMemory(), many, 1.0).evidence) == 512
    assert load_memory("n39", "d").evidence and load_memory("n0", "d") == NodeMemory()


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text()))
def test_any_evidence_is_taken(evidence: dict[str, object]) -> None:
    found = Finding("RDMA_LINK_FLAPPING", Severity.CRITICAL, "mlx5_0", "", evidence, Fix(""), "")
    assert evidence_of(found).code == "RDMA_LINK_FLAPPING"


class Machine:
    """A recorded node whose kernel logged an error of a GPU, and the state that scontrol shows for it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.folder, self._capsys = materialise("gpu_xid", folder / "machine"), folder, capsys
        self.scontrol, self.shown = folder / "scontrol", folder / "shown"
        log_xid(self.root, -3600)
        self.show("IDLE")
        log, node = shlex.quote(str(folder / "log")), shlex.quote(str(self.shown))
        self.scontrol.write_text(f'#!/bin/sh\n[ "$1" = show ] && exec cat {node}\nprintf "%s\\n" "$@" >> {log}\n')
        self.scontrol.chmod(0o755)

    def show(self, state: str, reason: str = "", last_busy: str = "None") -> None:
        line = f"\n   Reason={reason} [root@2026-11-20T10:00:00]" if reason else ""
        self.shown.write_text(
            f"NodeName=n1 Arch=x86_64\n   State={state} ThreadsPerCore=1\n   LastBusyTime={last_busy}{line}\n"
        )

    def gate(self, *words: str) -> tuple[int, str]:
        self._capsys.readouterr()
        fixed = ["--host-root", str(self.root), "--only", "gpu_xid", "--scontrol", str(self.scontrol)]
        fixed += ["--slurm-node", "n1", "--kill-switch", str(self.folder / "disabled")]
        status = main(["healthcheck", *fixed, "--gate", "enforce", "--collector", "none", "--drain", *words])
        return status, self._capsys.readouterr().out

    @property
    def updates(self) -> int:
        log = self.folder / "log"
        return log.read_text().count("State=DRAIN") if log.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    return Machine(tmp_path, capsys)


def test_an_operators_resume_is_not_undone_by_the_same_xid(machine: Machine) -> None:
    assert machine.gate()[0] == 1 and machine.updates == 1
    machine.show("IDLE+DRAIN", "laggard: GPU_XID")
    assert machine.gate()[0] == 1 and machine.updates == 1
    machine.show("IDLE")
    for words in ((), ("--resume", "--profile", "periodic")) * 3:
        status, out = machine.gate(*words)
        assert status == 0 and machine.updates == 1, out
        assert "gate: GPU_XID GPU 0000:9b:00.0 was seen before the resume of 2" in out and "a warning" in out, out
        assert "gate: pass, nothing critical" in out and out.startswith("laggard: ok, "), out
    log_xid(machine.root, 0.2)  # evidence has its time to a tenth of a second
    assert machine.gate()[0] == 1 and machine.updates == 2


def test_the_report_says_why_a_finding_is_a_warning(machine: Machine) -> None:
    machine.gate()
    machine.show("IDLE")
    report = json.loads(machine.gate("--format", "json")[1])
    (found,) = report["findings"]
    assert found["severity"] == "warning" and found["evidence"]["lowered"].startswith("seen before the resume of ")
    assert report["verdict"] == "ok" and report["probes"][0]["verdict"] == "ok"


def test_where_slurm_does_not_answer_what_is_remembered_counts(machine: Machine) -> None:
    machine.gate()
    machine.show("IDLE")
    assert machine.gate()[0] == 0
    machine.scontrol.write_text("#!/bin/sh\necho away >&2; exit 1\n")
    status, out = machine.gate()
    assert status == 0 and "was seen before the resume" in out, out


def test_where_the_memory_cannot_be_kept_the_gate_says_so_and_works(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGGARD_STATE_DIR", "/proc/nowhere/state")
    status, out = machine.gate()
    assert status == 1 and machine.updates == 1 and "gate: what was seen here cannot be kept, so" in out, out


def test_a_boot_begins_anew(machine: Machine) -> None:
    machine.gate()
    machine.show("IDLE")
    boot = machine.root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text("another boot\n")
    assert machine.gate()[0] == 1 and machine.updates == 2
