"""SLURM's nodes as agents: what sinfo says is read, and what it does wrong is one line. The programs here stand in for
sinfo; tests/slurm has the real one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.rows import rows
from support.waiting import wait_for

from laggard.collector.discovery import SlurmPartition, Source, Unanswered

Sinfo = Callable[[str], str]


@pytest.fixture
def sinfo(tmp_path: Path) -> Sinfo:
    def make(script: str) -> str:
        path = tmp_path / "sinfo"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def says(*lines: str) -> str:
    return "cat <<'END'\n" + "\n".join(lines) + "\nEND"


def urls(place: SlurmPartition) -> list[str]:
    return [target.url for target in place.read().targets]


def test_each_node_that_has_a_machine_is_an_agent_once(sinfo: Sinfo) -> None:
    states = (
        "n1|idle",
        "n2|down*",
        "n3|idle~",
        "n4|powering_down",
        "n5|mixed#",
        "n6|draining%",
        "n7|future",
        "n1|idle",
    )
    path = sinfo(
        says("slurm: a warning", *(f"node={state} " for state in states), "node=10.0.0.9|idle", "node=fd00::1|idle")
    )
    assert urls(SlurmPartition("gpu", path)) == [
        f"http://{host}:19400" for host in ("10.0.0.9", "[fd00::1]", "n1", "n2", "n5")
    ]
    assert urls(SlurmPartition("https://gpu:1234", path))[2] == "https://n1:1234"


def test_sinfo_is_asked_for_the_partition_in_its_own_case_and_for_all(
    sinfo: Sinfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINFO_PARTITION", "other")
    path = sinfo(f'echo "$@ $SINFO_PARTITION" >> {tmp_path}/asked; echo "node=n1|idle"')
    for text in ("A100", "https://A100:1/", "*"):
        SlurmPartition(text, path).read()
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == asked[1] == "--noheader --Node --partition=A100 --format=node=%o|%T|%R|%u|%H|%E "
    assert asked[2] == "--noheader --Node --all --format=node=%o|%T|%R|%u|%H|%E "


def test_partitions_are_labels(sinfo: Sinfo) -> None:
    path = sinfo(says("node=n1|idle|gpu", "node=n1|idle|all", "node=n2|mixed|gpu", "node=n3|idle|"))
    labels = SlurmPartition("*", path).read().labels
    assert {target.address: given.partition for target, given in labels.items()} == {
        "n1:19400": "all,gpu",
        "n2:19400": "gpu",
        "n3:19400": "",
    }


def test_who_keeps_jobs_from_a_node(sinfo: Sinfo) -> None:
    """A node that SLURM has switched off has no agent; what runs jobs, or is reserved for some, is not out."""
    lines = (
        "node=n1|drained|gpu|root|2026-11-20T10:00:00|laggard: DISK_FULL / 99 % used #ed52",
        "node=n2|draining*|gpu|root|2026-11-20T10:00:00|bob: new PSU | ticket 7",
        "node=n3|down*|gpu|slurm|2026-11-20T10:00:00|Not responding",
        "node=n4|drained|gpu|root|Unknown|Prolog error",
        "node=n5|maint|gpu|Unknown|Unknown|none",
        "node=n6|mixed|gpu|Unknown|Unknown|none",
        "node=n7|reserved|gpu|Unknown|Unknown|none",
        "node=n8|idle~|gpu|Unknown|Unknown|none",
        "node=n9|down|gpu|root|Unknown|RMA",
    )
    answer = SlurmPartition("gpu", sinfo(says(*lines))).read()
    out = {target.address.partition(":")[0]: it for target, it in answer.out.items()}
    assert {name: it.by for name, it in out.items()} == {
        "n1": "laggard",
        "n2": "administrator",
        "n3": "slurm",
        "n4": "slurm",
        "n5": "administrator",
        "n9": "administrator",
    }
    assert out["n2"] == ("administrator", 1795168800.0, "bob: new PSU | ticket 7")
    assert (out["n4"].since, out["n5"].reason) == (0.0, "")


def test_what_cannot_be_an_agent_is_named(sinfo: Sinfo) -> None:
    answer = SlurmPartition("gpu", sinfo(says("node=a b|idle", "node=n1|idle", "node=x/y|idle"))).read()
    assert [target.address for target in answer.targets] == ["n1:19400"]
    assert answer.note.startswith("2 nodes of SLURM left out: cannot read target")
    assert SlurmPartition("gpu", sinfo("true")).read().note == "SLURM has no node in partition gpu"


@rows("collector/sinfo_fails")
def test_a_program_that_fails_hangs_or_never_ends_is_one_line(sinfo: Sinfo, script: str, why: str) -> None:
    with pytest.raises(Unanswered, match=why) as raised:
        SlurmPartition("gpu", sinfo(script), seconds=0.5).read()
    assert "\n" not in str(raised.value)


def test_while_slurm_is_away_its_last_list_holds_for_a_time(sinfo: Sinfo) -> None:
    source = Source(SlurmPartition("gpu", sinfo(says("node=n1|idle"))), keep_seconds=900.0)
    source.look(0.0)
    sinfo("echo connect failure; exit 1")
    source.look(60.0)
    assert [target.address for target in source.answer.targets] == ["n1:19400"]
    assert source.answer.note == "SLURM cannot be asked: connect failure; what it said 60 s ago holds"
    source.look(1000.0)
    assert not source.answer.targets and "holds no longer" in source.answer.note


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unanswered, match="no such file"):
        SlurmPartition("gpu", str(tmp_path / "none")).read()


def test_no_process_is_left(sinfo: Sinfo, tmp_path: Path) -> None:
    path = sinfo(f"echo $$ > {tmp_path}/pid; sleep 600")
    with pytest.raises(Unanswered):
        SlurmPartition("gpu", path, seconds=0.5).read()
    pid = (tmp_path / "pid").read_text().strip()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
