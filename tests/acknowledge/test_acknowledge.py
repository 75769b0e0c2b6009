"""Findings that an operator knows of: what an acknowledgement covers, its file, the command, and the gate."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.materialise import materialise

from laggard.acknowledge.asked import NotAcknowledged, acknowledgement, is_signed, signed
from laggard.acknowledge.kept_file import KeptFileError, change_kept, read_kept, write_kept
from laggard.acknowledge.matching import covered, find, severity_of, with_acknowledgement, without_words
from laggard.cli import main
from laggard.model import Finding, Fix, Severity
from laggard.wire import encode
from laggard.wire.acknowledgement import AcknowledgeAsk, Acknowledgement, AcknowledgementsDocument

pytestmark = pytest.mark.usefixtures("without_processes")

XID = Finding("GPU_XID", Severity.CRITICAL, "GPU 0", "Xid 109", {"xid": 109}, Fix(""), "")


def changed(**changes: Any) -> Finding:
    values = {name: getattr(XID, name) for name in XID.__struct_fields__}
    return Finding(**{**values, **changes})


def ask(**changes: Any) -> AcknowledgeAsk:
    values: dict[str, Any] = {"code": "GPU_XID", "nodes": ("n1",), "seconds": 60.0, "reason": "ticket 77"}
    return AcknowledgeAsk("bob", 1000.0, "a" * 32, **{**values, **changes})


@pytest.mark.parametrize(
    ("finding", "covers"),
    [
        (XID, True),
        (changed(severity=Severity.WARNING), True),
        (changed(summary="Xid 109, 3 times"), True),
        (changed(device="GPU 1"), False),
        (changed(evidence={"xid": 79}), False),
        (changed(code="GPU_LOST"), False),
    ],
    ids=["same", "less_grave", "other_words", "device", "kind", "code"],
)
def test_it_ends_when_the_finding_changes(finding: Finding, covers: bool) -> None:
    known = acknowledgement(ask(), [XID], 1000.0)
    assert (find([known], "n1", finding, 1030.0) is not None) == covers
    assert find([known], "n2", finding, 1030.0) is None, "another node"
    assert find([known], "n1", finding, 1060.0) is None, "its time is over"


def test_a_warning_that_becomes_critical_is_another_finding() -> None:
    known = acknowledgement(ask(), [changed(severity=Severity.WARNING)], 1000.0)
    assert find([known], "n1", XID, 1001.0) is None


def test_maintenance_and_any_device_cover_whatever_comes() -> None:
    for asked in (ask(code="*"), ask(device="*")):
        known = acknowledgement(asked, [], 1000.0)
        assert find([known], "n1", changed(device="GPU 7", evidence={"xid": 79}), 1001.0) == known


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (ask(code="GPU_XYZ"), "no finding has the code"),
        (ask(nodes=()), "name the node"),
        (ask(seconds=0.0), "for how long"),
        (ask(reason=" "), "give a reason"),
        (ask(code="DISK_FULL"), "n1 has no DISK_FULL now: name the device"),
    ],
)
def test_what_is_not_granted_says_what_to_do(asked: AcknowledgeAsk, why: str) -> None:
    with pytest.raises(NotAcknowledged, match=why):
        acknowledgement(asked, [XID], 1000.0)


def test_an_acknowledged_finding_is_a_warning_that_says_who_and_why() -> None:
    known = acknowledgement(ask(reason="ticket\x1b[31m 77"), [XID], 1000.0)
    found = with_acknowledgement(XID, known)
    assert found.severity is Severity.WARNING and severity_of(found) is Severity.CRITICAL
    assert found.summary == "Xid 109 (acknowledged by bob until 1970-01-01 00:17:40 UTC: ticket [31m 77)"
    assert covered(found) == covered(XID), "acknowledged once more it is bound to the same"
    assert without_words(found) == changed(severity=Severity.WARNING)


def test_only_who_knows_the_token_signs() -> None:
    question = signed("secret", ask())
    assert is_signed(["secret"], question) and not is_signed(["guess"], question) and not is_signed(["secret"], ask())
    assert is_signed(["new", "secret"], question) and not is_signed([], question), "either of two"
    assert not is_signed(["secret"], signed("secret", ask()).__class__(**{**_fields(question), "seconds": 9999.0}))


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def kept(**changes: Any) -> Acknowledgement:
    now = time.time()
    values: dict[str, Any] = {"at": now, "until": now + 60, "nodes": ("n1",), "code": "GPU_XID"}
    return Acknowledgement(**{"id": "1", "by": "bob", "reason": "77", **values, **changes})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"acknowledgements": [{"id"',
        b"\xff\xfe",
        b"[" * 100_000,
        encode(AcknowledgementsDocument((kept(),))).replace(b"GPU_XID", b"$(reboot)"),
        encode(AcknowledgementsDocument((kept(until=1e300),))),
        b" " * (9 << 20),
    ],
    ids=["empty", "half", "bytes", "nested", "code", "time", "long"],
)
def test_a_damaged_file_acknowledges_nothing_and_says_so(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "acknowledged.json"
    path.write_bytes(content)
    with pytest.raises(KeptFileError, match=r"damaged|more than"):
        read_kept(str(path))


def test_only_a_file_of_roots_own_counts(tmp_path: Path) -> None:
    path = tmp_path / "acknowledged.json"
    assert read_kept(str(path)) == ()
    known, over = kept(), kept(until=time.time() - 1)
    write_kept(str(path), (known, over))
    assert read_kept(str(path)) == (known,), "what is over is not read"
    path.chmod(0o666)
    with pytest.raises(KeptFileError, match="alone: chown it"):
        read_kept(str(path))
    path.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
        with pytest.raises(KeptFileError, match="alone: chown it"):
            read_kept(str(path))
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(KeptFileError, match="cannot read"):
        read_kept(str(link))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(KeptFileError, match="alone"):
        read_kept(str(tmp_path / "fifo"))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    try:
        read_kept(str(path))
    except KeptFileError as error:
        assert str(path) in str(error)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def findings(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `laggard findings` with a file of its own, on the node n1, where no agent answers."""
    monkeypatch.setenv("LAGGARD_NODE", "n1")
    monkeypatch.delenv("SUDO_USER", raising=False)

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main(["findings", *words, "--file", str(tmp_path / "acknowledged.json"), "--agent-port", "9"])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def test_the_command_keeps_lists_and_withdraws(findings: Run) -> None:
    words = ("acknowledge", "disk-full", "--device", "/", "--for", "24h", "--reason", "ticket 77")
    status, out = findings(*words)
    assert status == 0 and "DISK_FULL / on n1: acknowledged by " in out and out.endswith(": ticket 77\n"), out
    assert findings("maintenance", "--for", "2h", "--reason", "switch")[0] == 0
    status, out = findings("acknowledged")
    assert status == 0 and out.startswith("2 acknowledgements.\n") and "* on n1: maintenance by" in out
    listed = json.loads(findings("acknowledged", "--format", "json")[1])
    assert listed["schema"] == "laggard.acknowledgements/1" and len(listed["acknowledgements"]) == 2
    assert findings("acknowledged", "--withdraw", listed["acknowledgements"][0]["id"])[0] == 0
    assert findings("acknowledged")[1].startswith("1 acknowledgement.\n")
    assert findings("acknowledged", "--withdraw", "nothing") == (
        64,
        "laggard: no acknowledgement has the id 'nothing': `laggard findings acknowledged` lists them\n",
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("acknowledge", "--for", "1h", "--reason", "x"), "name one code"),
        (("acknowledge", "DISK_FULL", "--reason", "x"), "say with --for"),
        (("acknowledge", "DISK_FULL", "--for", "1h"), "say why with --reason"),
        (("acknowledge", "DISK_FULL", "--for", "91d", "--reason", "x"), "no time up to 90 days"),
        (("acknowledge", "DISK_FULL", "--for", "1h", "--reason", "x"), "name the device"),
        (("acknowledge", "DISK_FULL", "--for", "1h", "--reason", "x", "--node", "n2"), "this is n1: name a collector"),
        (("maintenance", "DISK_FULL", "--for", "1h", "--reason", "x"), "leave CODE and --device out"),
        (("maintenance", "--for", "1h", "--reason", "x", "--nodes", "n[1-99999]"), "--nodes takes up to 4096 names"),
    ],
)
def test_wrong_usage_is_one_line(findings: Run, words: tuple[str, ...], why: str) -> None:
    status, out = findings(*words)
    assert status == 64 and why in out and out.count("\n") == 1, out


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the gate on a recorded machine called n1, whose disk is full."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    root = materialise("disk_full", tmp_path / "machine")
    (root / "proc/sys/kernel/hostname").write_text("n1\n")

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        fixed = ["--host-root", str(root), "--only", "disks", "--acknowledged", str(tmp_path / "acknowledged.json")]
        status = main(["healthcheck", *fixed, "--kill-switch", str(tmp_path / "off"), *words])
        return status, capsys.readouterr().out

    return run


ENFORCE = ("--gate", "enforce", "--collector", "none")


def test_the_gate_rejects_nothing_for_what_is_acknowledged(gate: Run, findings: Run) -> None:
    assert gate(*ENFORCE)[0] == 1
    findings("acknowledge", "DISK_FULL", "--device", "/", "--for", "1h", "--reason", "ticket 77")
    status, out = gate(*ENFORCE)
    assert status == 0 and "gate: DISK_FULL / is no reason to drain, acknowledged by " in out, out
    assert out.endswith("gate: pass, nothing critical\n") and out.startswith("laggard: ok, 1 probe passed"), out
    report = json.loads(gate("--format", "json")[1])
    assert report["verdict"] == "ok" and report["findings"][0]["evidence"]["acknowledged"]["reason"] == "ticket 77"
    listed = json.loads(findings("acknowledged", "--format", "json")[1])["acknowledgements"]
    findings("acknowledged", "--withdraw", listed[0]["id"])
    assert gate(*ENFORCE)[0] == 1


def test_a_file_that_cannot_be_used_is_told_and_drains_as_ever(gate: Run, tmp_path: Path) -> None:
    (tmp_path / "acknowledged.json").write_text("{")
    status, out = gate(*ENFORCE)
    assert status == 1 and "gate: nothing is acknowledged here: " in out and out.endswith("gate: reject\n"), out


def test_nobody_else_can_open_what_is_locked_to_change_the_file(tmp_path: Path) -> None:
    """Who can read a file can lock it, too, and keep root's own command waiting for ever."""
    before = os.umask(0o022)
    try:
        change_kept(str(tmp_path / "acknowledged.json"), lambda held: held)
    finally:
        os.umask(before)
    (lock,) = tmp_path.glob("*.turn")
    assert not lock.stat().st_mode & 0o077
