"""Folders of which the truth is known: who was first, where and why; and copies of them that lack something."""

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.paths import DATA

from laggard.diagnose.command import diagnose_together
from laggard.diagnose.folder import given_files
from laggard.wire.diagnosis import Diagnosis

TRUE_FOLDERS = DATA / "folders"
_ISO = re.compile(r"2026-11-26([T _])(\d\d):(\d\d):(\d\d)")
_NAMED = re.compile(r"Thu Nov 26 (\d\d):(\d\d):(\d\d) 2026")


def truths() -> dict[str, dict[str, Any]]:
    lines = (TRUE_FOLDERS / "truth.jsonl").read_text().splitlines()
    known = map(json.loads, lines)  # those that are held out measure what was built without them, and are no tests
    return {truth["name"]: truth for truth in known if truth.get("set") != "held-out"}


def diagnosed(folder: Path) -> Diagnosis:
    return diagnose_together(given_files([str(folder)]))


def wrong(diagnosis: Diagnosis, truth: dict[str, Any]) -> str:
    """Whom an answer accuses without reason; empty: nobody. It may say less than is true."""
    joined, first = diagnosis.joined, truth["first"]
    if joined is None:
        return ""
    if joined.host not in (None, first["host"]):
        return f"host {joined.host}: {joined.answer}"
    if set(joined.ranks) - {first["rank"]}:
        return f"ranks {joined.ranks}: {joined.answer}"
    return ""


def without_each_file(name: str) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Removes each file in turn, but for those that are of no known format by what they are."""
    folder = TRUE_FOLDERS / name
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pt"):
        inside = path.relative_to(folder)
        yield f"without {inside}", lambda copy, inside=inside: (copy / inside).unlink()


def without_each_kind(name: str) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Removes in turn all files whose names begin alike, as `dmesg` of all hosts, and each folder."""
    folder = TRUE_FOLDERS / name
    kinds = sorted({re.split(r"[.-]", path.name)[0] for path in folder.iterdir()})
    yield from ((f"without {kind}*", lambda copy, kind=kind: _without(copy, kind)) for kind in kinds)
    if {"nft", "ss"} <= set(kinds):
        yield "without nft* and ss*", lambda copy: (_without(copy, "nft"), _without(copy, "ss"))[0]


def _without(folder: Path, kind: str) -> None:
    for path in list(folder.iterdir()):
        if re.split(r"[.-]", path.name)[0] == kind:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def changed(name: str) -> Iterator[tuple[str, Callable[[Path], None]]]:
    host = truths()[name]["first"]["host"]
    yield "all packed", _packed
    yield "logs cut in the middle", _cut
    yield "its clock is 90 s ahead", lambda copy: _shifted(copy, host, timedelta(seconds=90))
    yield "its clock is in another time zone", lambda copy: _shifted(copy, host, timedelta(hours=9, minutes=30))
    yield "another's clock is late", lambda copy: _shifted(copy, "n1" if host != "n1" else "n0", timedelta(seconds=-90))
    yield "in one flat folder", _flat
    yield "without notes", _without_notes


def changed_copy(name: str, folder: Path, change: Callable[[Path], None]) -> Path:
    shutil.copytree(TRUE_FOLDERS / name, folder)
    change(folder)
    return folder


def renamed_hosts(name: str, folder: Path) -> Path:
    """A copy in which host nK is trainK-gpu, in names and texts."""
    shutil.copytree(TRUE_FOLDERS / name, folder)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and path.suffix not in (".pt", ".jsonl"):
            path.write_text(re.sub(r"\bn([0-3])\b", r"node-\g<1>a", path.read_text()))
        if (new := re.sub(r"(?<![a-z0-9])n([0-3])(?![a-z0-9])", r"node-\g<1>a", path.name)) != path.name:
            path.rename(path.with_name(new))
    return folder


def _texts(folder: Path) -> list[Path]:
    return [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix not in (".pt", ".json", ".jsonl")
    ]


def _packed(folder: Path) -> None:
    for path in _texts(folder):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def _cut(folder: Path) -> None:
    """Of each long text the middle tenth is lost, within lines."""
    for path in _texts(folder):
        data = path.read_bytes()
        if len(data) > 4000:
            path.write_bytes(data[: len(data) * 45 // 100] + data[len(data) * 55 // 100 :])


def _shifted(folder: Path, host: str, by: timedelta) -> None:
    for path in _texts(folder):
        if re.search(rf"(?<![a-z0-9]){host}(?![a-z0-9])", path.name):
            path.write_text(
                _NAMED.sub(lambda it: _moved_name(it, by), _ISO.sub(lambda it: _moved(it, by), path.read_text()))
            )


def _moved(found: re.Match[str], by: timedelta) -> str:
    moment = datetime(2026, 11, 26, int(found[2]), int(found[3]), int(found[4])) + by
    return moment.strftime(f"%Y-%m-%d{found[1]}%H:%M:%S")


def _moved_name(found: re.Match[str], by: timedelta) -> str:
    moment = datetime(2026, 11, 26, int(found[1]), int(found[2]), int(found[3])) + by
    return moment.strftime("%a %b %d %H:%M:%S %Y")


def _flat(folder: Path) -> None:
    """Each file beside the others, with its folders' names in its own."""
    for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        inside = path.relative_to(folder)
        if len(inside.parts) > 1:
            path.rename(folder / "_".join(inside.parts))


def _without_notes(folder: Path) -> None:
    for path in list(folder.iterdir()):
        if path.name.lower().startswith(("readme", "note")):
            path.unlink()


SAYS = {
    "kill-sigkill": "killed by SIGKILL",
    "kill-segfault": "crashed: SIGSEGV",
    "kill-abort": "aborted, since its native code spoilt the heap: free(): invalid pointer",
    "hang-sigstop": "was stopped: its process 27228 is in state T",
    "hang-sleep": "hung in wait_until_written (data.py:12)",
    "hang-mismatch": "called broadcast",
    "oom-rank": "killed by the kernel: its host was out of memory (python)",
    "oom-dataloader": "A DataLoader worker of rank 1 on n3 was killed by the kernel",
    "oom-allocator": "host memory is used up: you tried to allocate",
    "port-link-down": "has no link",
    "port-slow": "has traffic shaping (tbf)",
    "port-firewall": "send the same bytes again and get no answer",
    "port-blackhole": "throw away what this host sends to its neighbours in 10.77.0.0/24",
    "port-absent": "Interface eno1np0 on n1 was set down",
    "kill-keyerror": "KeyError: 'void'",
    "oom-page-cache": "killed by the kernel: its host was out of memory",
}


@pytest.mark.parametrize("name", truths())
def test_the_first_rank_its_host_and_the_cause_are_told(name: str) -> None:
    truth, diagnosis = truths()[name], diagnosed(TRUE_FOLDERS / name)
    joined, first = diagnosis.joined, diagnosis.findings[0]
    assert joined is not None
    assert (joined.ranks, joined.host) == ((truth["first"]["rank"],), truth["first"]["host"])
    assert first.code in truth["codes"] and SAYS[name] in joined.answer
    assert {line.host for line in joined.timeline if line.role == "first"} <= {truth["first"]["host"], None}
    named = joined.answer.partition(";")[0]
    assert not any(f" on {host}" in named for host in truth["innocent_hosts"])


LARGEST = ("port-firewall", "port-slow", "port-link-down")  # seconds each
FOLDERS = [pytest.param(name, marks=pytest.mark.slow) if name in LARGEST else name for name in truths()]


@pytest.mark.parametrize("name", FOLDERS)
def test_evidence_that_is_missing_or_changed_accuses_nobody_else(name: str, tmp_path: Path) -> None:
    """Files removed one by one and kind by kind, all packed, logs cut, clocks that stand apart, all in one folder: the
    answer may say less, never another rank or host."""
    changes = (*without_each_file(name), *without_each_kind(name), *changed(name))
    told = 0
    for number, (what, change) in enumerate(changes):
        diagnosis = diagnosed(changed_copy(name, tmp_path / f"{number}" / name, change))
        assert not wrong(diagnosis, truths()[name]), what
        told += diagnosis.joined is not None and bool(diagnosis.joined.ranks)
    assert told >= 0.7 * len(changes)


@pytest.mark.parametrize("name", truths())
def test_hosts_of_other_names_are_found_as_well(name: str, tmp_path: Path) -> None:
    truth = truths()[name]["first"]
    joined = diagnosed(renamed_hosts(name, tmp_path / name)).joined
    assert joined is not None and joined.ranks == (truth["rank"],)
    assert joined.host == f"node-{truth['host'][1:]}a"


@pytest.mark.parametrize("name", ["kill-abort", "hang-sleep", "kill-sigkill", "oom-dataloader", "port-firewall"])
def test_the_log_of_another_job_is_said_to_be_one(name: str) -> None:
    notes = [note for note in diagnosed(TRUE_FOLDERS / name).notes if "is of another job" in note]
    assert len(notes) == 1
