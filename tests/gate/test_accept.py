"""Findings that root accepts on a node: the file, what it covers, the command, and the gate that reads it."""

import json
import os
import shlex
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.docs_commands import command_lines
from support.materialise import materialise
from support.paths import REPOSITORY

from laggard.cli import main
from laggard.kit.errors import UsageError
from laggard.kit.words import coming_moment
from laggard.model import MAX_DEVICE, MAX_SUMMARY, Finding, Fix, Severity
from laggard.wire.accepted import (
    MAX_BYTES,
    MAX_REASON,
    Accepted,
    AcceptedError,
    find,
    lowered,
    parse,
    read_accepted,
    without_mark,
    written,
)

pytestmark = pytest.mark.usefixtures("without_processes")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who alone accepts findings")

NOW = 1_790_000_000.0
CODES, DEVICES = ("GPU_XID", "DISK_FULL"), ("GPU 0", "GPU 1")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
ACCEPTED = st.builds(
    Accepted,
    st.sampled_from(CODES),
    st.floats(NOW - 10, NOW + 10),
    TEXTS.filter(bool),
    st.sampled_from(("", *DEVICES)) | TEXTS,
)
FOUND = st.builds(
    Finding,
    st.sampled_from(CODES),
    st.sampled_from(Severity),
    st.sampled_from(DEVICES),
    st.sampled_from(("Xid 79", "x" * MAX_SUMMARY)),
    st.just({"xid": 79}),
    st.just(Fix("reset it")),
    st.just(""),
)


@given(st.lists(ACCEPTED, max_size=20))
def test_what_is_written_is_read(accepted: list[Accepted]) -> None:
    assert parse(written(accepted)) == tuple(accepted)


@given(st.binary(max_size=300) | st.lists(ACCEPTED, min_size=1, max_size=3).map(lambda it: written(it)[:-1]))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(AcceptedError, match="damaged"):
        parse(data)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"code": "$(reboot)"}, "damaged"),
        ({"until": 1e300}, "damaged"),
        ({"until": "tomorrow"}, "damaged"),
        ({"reason": ""}, "damaged"),
        ({"reason": "x" * (MAX_REASON + 1)}, "damaged"),
        ({"device": "x" * (MAX_DEVICE + 1)}, "damaged"),
        ({"xid": 79}, "damaged"),
        ({}, "is no laggard.accepted/1"),
    ],
)
def test_what_another_release_may_mean_is_not_guessed(changes: dict[str, Any], why: str) -> None:
    accepted = {"code": "GPU_XID", "until": NOW, "reason": "77", **changes}
    schema = "laggard.accepted/1" if changes else "laggard.accepted/2"
    with pytest.raises(AcceptedError, match=why):
        parse(json.dumps({"accepted": [accepted], "schema": schema}).encode())


def test_the_file_is_bounded() -> None:
    with pytest.raises(AcceptedError, match="more than 65536 bytes"):
        parse(b" " * (MAX_BYTES + 1))
    with pytest.raises(AcceptedError, match="end some"):
        written([Accepted("GPU_XID", NOW, "x" * MAX_REASON)] * 400)


@given(st.lists(FOUND, max_size=6), st.lists(ACCEPTED, max_size=6))
def test_a_finding_is_a_warning_if_and_only_if_one_of_them_covers_it_now(
    findings: list[Finding], accepted: list[Accepted]
) -> None:
    marked = lowered(findings, accepted, NOW)
    for place, finding in enumerate(findings):
        covers = [
            it for it in accepted if it.code == finding.code and it.device in ("", finding.device) and it.until > NOW
        ]
        assert (place in marked) == bool(covers) == (find(accepted, finding, NOW) is not None)
        if not covers:
            continue
        now, mark = marked[place], marked[place].evidence["accepted"]
        assert now.severity is (Severity.WARNING if finding.severity is Severity.CRITICAL else finding.severity)
        assert (mark["until"], mark["severity"]) == (max(it.until for it in covers), finding.severity.value)
        assert now.summary.endswith(f" ({mark['words']})") and len(now.summary) <= MAX_SUMMARY
        assert finding.summary.startswith(without_mark(now).summary.removesuffix("..."))
        assert without_mark(now).evidence == finding.evidence
        assert not lowered([now], accepted, NOW), "once"


def test_the_words_are_one_line_of_the_time_and_the_reason() -> None:
    finding = Finding("GPU_XID", Severity.CRITICAL, "GPU 0", "Xid 79", {}, Fix(""), "")
    (marked,) = lowered([finding], [Accepted("GPU_XID", 1000.0, "ticket\x1b[31m\n77")], 0.0).values()
    assert marked.summary == "Xid 79 (accepted until 1970-01-01 00:16:40 UTC: ticket [31m 77)"
    assert without_mark(marked).summary == "Xid 79"


@given(st.integers(0, 99_999), st.sampled_from("smhdw"))
def test_a_span_is_from_now(count: int, unit: str) -> None:
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[unit]
    assert coming_moment(f"{count}{unit}", NOW) == NOW + count * seconds


@given(st.datetimes(datetime(2026, 9, 22), datetime(2100, 1, 1)), st.sampled_from(("Z", "+00:00", " UTC")))
def test_a_date_is_in_its_zone(date: datetime, zone: str) -> None:
    date = date.replace(microsecond=0)
    expected = date.replace(tzinfo=timezone.utc).timestamp()
    assert coming_moment(f"{date.isoformat()}{zone}", NOW) == expected
    assert coming_moment(f"{date.isoformat()}-02:00", NOW) == expected + 7200


@given(st.text(max_size=20))
def test_any_text_is_a_time_to_come_or_a_refusal(text: str) -> None:
    try:
        assert coming_moment(text, NOW) >= NOW
    except UsageError as error:
        assert str(error).startswith(f"--until {text} ")


@ROOT
def test_only_a_file_of_roots_own_counts(tmp_path: Path) -> None:
    path, missing = tmp_path / "accepted.json", tmp_path / "no_folder/accepted.json"
    assert read_accepted(str(path)) == read_accepted(str(missing)) == ()
    known = Accepted("GPU_XID", NOW, "77")
    path.write_bytes(written([known]))
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    assert read_accepted(str(path)) == (known,)
    os.chown(path, 65534, -1)
    assert _refusal(path) == f"{path} cannot be used: it is not root's alone to write: chown root, chmod go-w"
    os.chown(path, 0, -1)
    os.chown(tmp_path, 65534, -1)
    assert f"{path} cannot be used: its folder is not root's alone to write" in _refusal(path)
    assert read_accepted(str(tmp_path / "other.json")) == (), "a file that is not there is nobody's"
    os.chown(tmp_path, 0, -1)
    for place, mode, what in ((tmp_path, 0o777, "its folder"), (tmp_path, 0o775, "its folder"), (path, 0o664, "it is")):
        before = place.stat().st_mode
        place.chmod(mode)
        assert f"cannot be used: {what}" in _refusal(path)
        place.chmod(before)
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(path)
    os.mkfifo(fifo, 0o644)
    assert _refusal(link) == f"{link} cannot be read: it is a link"
    assert "is not root's alone" in _refusal(fifo)
    path.write_bytes(b" " * (MAX_BYTES + 1))
    assert _refusal(path) == f"{path} cannot be used: it has more than {MAX_BYTES} bytes"


def _refusal(path: Path) -> str:
    with pytest.raises(AcceptedError) as refused:
        read_accepted(str(path))
    assert "\n" not in str(refused.value)
    return str(refused.value)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def healthcheck(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `laggard healthcheck` with a file of its own in the folder `etc`."""
    (tmp_path / "etc").mkdir(mode=0o755)

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main(["healthcheck", "--accepted", str(tmp_path / "etc/accepted.json"), *words])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


@ROOT
def test_root_accepts_lists_and_ends(healthcheck: Run, tmp_path: Path) -> None:
    file = tmp_path / "etc/accepted.json"
    assert healthcheck("--accept") == (0, "Nothing is accepted here.\n")
    tomorrow = (datetime.now(timezone.utc) + timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S UTC")
    before = os.umask(0o077)
    try:
        status, out = healthcheck("--accept", "disk-full:/", "--until", tomorrow, "--reason", "ticket\n77")
    finally:
        os.umask(before)
    assert (status, out) == (
        0,
        f"1 finding accepted on this node.\nDISK_FULL /: accepted until {tomorrow}: ticket 77\n",
    )
    assert (file.stat().st_mode & 0o777, file.stat().st_uid) == (0o644, 0), "the agent's user reads it"
    device = "GPU 0000:9b:00.0"
    status, out = healthcheck("--accept", f"GPU_XID:{device}", "--until", "7d", "--reason", "waits for the spare")
    assert status == 0 and out.startswith("2 findings accepted on this node.\nDISK_FULL /: accepted until "), out
    status, out = healthcheck(
        "--accept", f"GPU_XID:{device}", "--until", "1h", "--reason", "is here", "--format", "json"
    )
    listed = json.loads(out)
    assert listed["schema"] == "laggard.accepted/1" and listed == json.loads(
        healthcheck("--accept", "--format", "json")[1]
    )
    assert [(it["code"], it["device"], it["reason"]) for it in listed["accepted"]] == [
        ("GPU_XID", device, "is here"),
        ("DISK_FULL", "/", "ticket 77"),
    ], "of one name the last one holds, and who ends first comes first"
    assert healthcheck("--accept", f"GPU_XID:{device}", "--until", "now")[0] == 0
    assert healthcheck("--accept", "DISK_FULL:/", "--until", "now") == (0, "Nothing is accepted here.\n")
    status, out = healthcheck("--accept", "DISK_FULL", "--until", "now")
    assert (status, out.partition(":")[2]) == (
        64, " DISK_FULL on any device is not accepted: `laggard healthcheck --accept` lists what is\n"
    )  # fmt: skip
    assert os.listdir(tmp_path / "etc") == ["accepted.json"]


@ROOT
def test_the_lines_of_the_page_accept_list_and_end(healthcheck: Run) -> None:
    """Those of docs/operate.md."""
    begins = ("sudo laggard healthcheck --accept ", "laggard healthcheck --accept")
    lines = [it.text for it in command_lines(REPOSITORY / "docs/operate.md") if it.text.startswith(begins)]
    accepted, listed, ended = (healthcheck(*shlex.split(it.partition("healthcheck")[2])) for it in lines)
    assert accepted == listed and "GPU_XID GPU 0000:9b:00.0: accepted until " in listed[1]
    assert ended == (0, "Nothing is accepted here.\n")


ALONE = "not root's alone to write: chown root, chmod go-w"
ACCEPT = ("--accept", "DISK_FULL", "--until", "1h", "--reason", "ticket 77")


def test_nobody_else_accepts_anything(healthcheck: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert healthcheck(*ACCEPT) == (64, "laggard: only root accepts findings: use sudo\n")


@ROOT
def test_a_change_is_whole_or_refused(healthcheck: Run, tmp_path: Path) -> None:
    """Beside another change, in a folder of somebody else's, and to a file that cannot be used."""
    etc = tmp_path / "etc"
    file = etc / "accepted.json"
    (etc / "accepted.json.new").touch()
    status, out = healthcheck(*ACCEPT)
    assert status == 64 and "accepted.json.new is there: somebody else changes this now, or remove it" in out
    (etc / "accepted.json.new").unlink()
    etc.chmod(0o777)
    assert healthcheck(*ACCEPT) == (64, f"laggard: the folder of {file} is {ALONE}\n") and not os.listdir(etc)
    etc.chmod(0o755)
    file.write_text("{")
    status, out = healthcheck(*ACCEPT)
    assert status == 64 and "cannot be used: it is damaged" in out and out.count("\n") == 1
    assert (file.read_text(), os.listdir(etc)) == ("{", ["accepted.json"])


@pytest.fixture
def gate(healthcheck: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the gate on a recorded machine whose disk is full."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    root = materialise("disk_full", tmp_path / "machine")
    words = ("--host-root", str(root), "--only", "disks", "--kill-switch", str(tmp_path / "off"))
    return lambda *more: healthcheck(*words, *more)


ENFORCE = ("--gate", "enforce", "--collector", "none")


@ROOT
def test_the_gate_rejects_nothing_for_what_root_accepts(gate: Run, healthcheck: Run, tmp_path: Path) -> None:
    assert gate(*ENFORCE)[0] == 1
    healthcheck("--accept", "DISK_FULL:/home", "--until", "1h", "--reason", "another disk")
    assert gate(*ENFORCE)[0] == 1, "it is another device"
    healthcheck("--accept", "DISK_FULL:/", "--until", "1h", "--reason", "ticket 77")
    status, out = gate(*ENFORCE)
    assert status == 0 and "gate: DISK_FULL / is no reason to drain, accepted until " in out, out
    assert out.endswith("gate: pass, nothing critical\n") and out.startswith("laggard: ok, 1 probe passed"), out
    status, out = gate("--format", "json")
    report = json.loads(out)
    (found,) = report["findings"]
    assert (status, report["verdict"], found["severity"]) == (0, "ok", "warning")
    assert found["evidence"]["accepted"]["reason"] == "ticket 77" and "ticket 77" in found["summary"]
    strict = tmp_path / "profile.yaml"
    strict.write_text("warnings_fail: true\n")
    assert gate("--profile", str(strict))[0] == 0, "nor does it as a warning"


@ROOT
def test_after_its_time_it_counts_by_itself(gate: Run, tmp_path: Path) -> None:
    file = tmp_path / "etc/accepted.json"
    file.write_bytes(written([Accepted("DISK_FULL", time.time() + 3600, "77")]))
    assert gate(*ENFORCE)[0] == 0
    file.write_bytes(written([Accepted("DISK_FULL", time.time() - 1, "77")]))
    status, out = gate(*ENFORCE)
    assert status == 1 and "accepted" not in out


def test_a_file_that_cannot_be_used_is_told_and_rejects_as_ever(gate: Run, tmp_path: Path) -> None:
    (tmp_path / "etc/accepted.json").write_text("{")
    status, out = gate(*ENFORCE)
    assert status == 1 and out.endswith("gate: reject\n"), out
    (line,) = (line for line in out.splitlines() if "accepted" in line)
    assert line.startswith(f"gate: nothing is accepted on this node: {tmp_path}/etc/accepted.json cannot be used: ")
