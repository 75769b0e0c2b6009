"""`laggard report nccl OLD NEW`: what an upgrade changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laggard.cli import main
from laggard.nccl.comparison import find_choices


def log(version: str, network: str, device: str, channels: int, extra: str = "") -> str:
    lines = [
        f"NCCL version {version}+cuda12.4",
        *([extra] if extra else []),
        f"Using network {network}",
        "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
        *(f"Channel {each:02d}/0 : 0[0] -> 8[0] [send] via NET/{device}" for each in range(channels)),
        f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, {channels} p2p channels, "
        "2 p2p channels per peer",
        f"AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..{channels - 1}}}",
    ]
    return "".join(f"node1:100:100 [0] NCCL INFO {line}\n" for line in lines)


def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str) -> Any:
    paths = [tmp_path / "old.log", tmp_path / "new.log"]
    for path, text in zip(paths, (old, new), strict=True):
        path.write_text(text)
    assert main(["report", "nccl", *map(str, paths), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_fallback_after_an_upgrade_is_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(tmp_path, capsys, log("2.19.3", "IB", "IB/0/GDRDMA", 4), log("2.27.5", "Socket", "Socket/1", 2))
    changes = {change["what"]: (change["old"], change["new"]) for change in found["changes"]}
    assert list(changes)[:2] == ["version", "network"] and changes["network"] == ("IB", "Socket")
    assert changes["transports"] == ("NET/IB with GPUDirect: 4", "NET/Socket: 2")
    assert changes["channels for collectives"] == ("4", "2")
    assert changes["AllReduce of 1048576 B"] == ("RING/SIMPLE, 4 channels", "RING/SIMPLE, 2 channels")
    moved = [(each["variable"], each["since"]) for each in found["defaults"]]
    assert ("NCCL_IB_TIMEOUT", "2.23") in moved and ("NCCL_CUMEM_ENABLE", "2.19") not in moved


def test_a_variable_that_is_set_has_no_default_that_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = log("2.27.5", "IB", "IB/0", 4, "NCCL_IB_TIMEOUT set by environment to 22.")
    found = compared(tmp_path, capsys, log("2.19.3", "IB", "IB/0", 4), new)
    assert "NCCL_IB_TIMEOUT" not in {each["variable"] for each in found["defaults"]}
    assert {"what": "NCCL_IB_TIMEOUT", "old": "not set", "new": "22"} in found["changes"]


def test_the_same_run_twice_has_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(tmp_path, capsys, log("2.27.5", "IB", "IB/0", 4), log("2.27.5", "IB", "IB/0", 4))
    assert found["changes"] == [] and found["defaults"] == [] and found["notes"] == []


def test_choices_in_each_form() -> None:
    lines = ["8 Bytes -> Algo 0 proto 1 time 3.2", "AllGather: 64 Bytes -> Algo 1 proto 2 time 4"]
    assert find_choices(lines)[0] == {"8 B": "TREE/LL128", "AllGather of 64 B": "RING/SIMPLE"}
