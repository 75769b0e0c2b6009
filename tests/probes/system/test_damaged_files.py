"""The system probes on recorded machines with damaged files: unknown with the reason, never ok, never a traceback."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import garble, remove

from laggard.cli import main
from laggard.probes.errors import Unknown
from laggard.probes.host.virtualization import format_cpu_list, parse_cpu_list
from laggard.probes.system.swap import parse_swaps

pytestmark = pytest.mark.usefixtures("without_processes")

Copy = Callable[[str], Path]

NEEDED = [
    ("swap", "swap_full", "proc/swaps"),
    ("swap", "swap_full", "proc/vmstat"),
    ("governor", "plain", "sys/devices/system/cpu/cpufreq/policy3/scaling_governor"),
    ("governor", "plain", "sys/devices/system/cpu"),
    ("affinity", "hgx_h100", "proc/self/status"),
    ("affinity", "hgx_h100", "sys/devices/system/cpu/online"),
    ("affinity", "hgx_h100", "sys/devices/system/node/node1/cpulist"),
    ("affinity", "hgx_h100", "sys/bus/pci/devices"),
    ("peermem", "peermem_by_dma_buf", "proc/driver/nvidia/version"),
    ("peermem", "peermem_by_dma_buf", "proc/sys/kernel/osrelease"),
    ("peermem", "peermem_by_dma_buf", "sys/bus/pci/devices"),
    ("mounts", "mount_closed", "proc/self/mounts"),
    ("mounts", "mount_closed", "laggard/replies.json"),
    ("nccl_env", "nccl_conf_harmful", "proc"),
    ("rdma_driver", "one_nic", "laggard/kmsg"),
    ("rdma_driver", "one_nic", "proc/uptime"),
]


def check(root: Path, probe: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["healthcheck", "--host-root", str(root), "--only", probe, "--format", "json"])
    (result,) = json.loads(capsys.readouterr().out)["probes"]
    return dict(result)


@pytest.mark.parametrize("damage", [remove, garble])
@pytest.mark.parametrize(("probe", "name", "path"), NEEDED, ids=lambda value: str(value).replace("/", "-"))
def test_a_probe_whose_file_is_damaged_is_unknown(
    probe: str, name: str, path: str, damage: Callable[[Path], None], copy_of: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(name)
    damage(root / path)
    result = check(root, probe, capsys)
    if (path, damage) == ("laggard/kmsg", garble):  # a log may hold anything
        return
    # The machine's own nccl.conf is judged, whatever becomes of the processes.
    assert result["verdict"] == ("fail" if (probe, path) == ("nccl_env", "proc") else "unknown"), result
    assert result["reason"] and "Traceback" not in result["reason"] and "failed:" not in result["reason"]


def test_modules_are_read_from_sys_where_proc_has_no_list(copy_of: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    root = copy_of("hgx_h100")
    (root / "proc/modules").unlink()
    assert check(root, "peermem", capsys)["verdict"] == "ok"
    shutil.rmtree(root / "sys/module")
    assert check(root, "peermem", capsys)["verdict"] == "unknown"


def test_a_driver_that_is_not_loaded_is_no_fault_of_peermem(copy_of: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    root = copy_of("peermem_missing")
    text = (root / "proc/modules").read_text()
    (root / "proc/modules").write_text("".join(line for line in text.splitlines(True) if "nvidia" not in line))
    result = check(root, "peermem", capsys)
    assert result["verdict"] == "unknown" and "not loaded" in result["reason"]


@pytest.mark.parametrize(
    ("driver", "release", "verdict"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  515.43.04  Release Build", "5.12.0", "ok"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1  Release Build", "6.8.0-45-generic", "ok"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1  Release Build", "5.4.0-100", "fail"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Sat", "6.8.0", "fail"),
        ("NVRM version: something else", "6.8.0", "unknown"),
    ],
)
def test_dma_buf_needs_the_open_driver_and_a_new_enough_kernel(
    driver: str, release: str, verdict: str, copy_of: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of("peermem_by_dma_buf")
    (root / "proc/driver/nvidia/version").write_text(driver + "\n")
    (root / "proc/sys/kernel/osrelease").write_text(release + "\n")
    assert check(root, "peermem", capsys)["verdict"] == verdict


@given(st.sets(st.integers(0, 2000), max_size=40))
def test_a_cpu_list_is_parsed_back(numbers: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(frozenset(numbers)), "x") == numbers


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_unknown(text: str) -> None:
    for parse, given_text in ((parse_cpus, text), (parse_swaps, text), (parse_swaps, "Filename\n" + text)):
        with contextlib.suppress(Unknown):
            assert len(parse(given_text)) <= 1 + given_text.count("\n") + given_text.count(",") or "-" in given_text


def parse_cpus(text: str) -> frozenset[int]:
    return parse_cpu_list(text, "x")
