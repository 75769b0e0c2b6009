"""The system probes on recorded machines with damaged files: unknown with the reason, never ok, never a traceback."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import garble, remove
from support.judge import Check, result_of
from support.rows import rows

from laggard.probes.errors import Unknown
from laggard.probes.host.virtualization import format_cpu_list, parse_cpu_list
from laggard.probes.system.swap import parse_swaps

pytestmark = pytest.mark.usefixtures("without_processes")

Copy = Callable[[str], Path]


@pytest.mark.parametrize("damage", [remove, garble])
@rows("probes/needed_files")
def test_a_probe_whose_file_is_damaged_is_unknown(
    probe: str, name: str, path: str, damage: Callable[[Path], None], copy_of: Copy, check: Check
) -> None:
    root = copy_of(name)
    damage(root / path)
    result = result_of(check(root, probe))
    if (path, damage) == ("laggard/kmsg", garble):  # a log may hold anything
        return
    # The machine's own nccl.conf is judged, whatever becomes of the processes.
    assert result["verdict"] == ("fail" if (probe, path) == ("nccl_env", "proc") else "unknown"), result
    assert result["reason"] and "Traceback" not in result["reason"] and "failed:" not in result["reason"]


def test_modules_are_read_from_sys_where_proc_has_no_list(copy_of: Copy, check: Check) -> None:
    root = copy_of("hgx_h100")
    (root / "proc/modules").unlink()
    assert result_of(check(root, "peermem"))["verdict"] == "ok"
    shutil.rmtree(root / "sys/module")
    assert result_of(check(root, "peermem"))["verdict"] == "unknown"


def test_a_driver_that_is_not_loaded_is_no_fault_of_peermem(copy_of: Copy, check: Check) -> None:
    root = copy_of("peermem_missing")
    text = (root / "proc/modules").read_text()
    (root / "proc/modules").write_text("".join(line for line in text.splitlines(True) if "nvidia" not in line))
    result = result_of(check(root, "peermem"))
    assert result["verdict"] == "unknown" and "not loaded" in result["reason"]


@rows("probes/dma_buf")
def test_dma_buf_needs_the_open_driver_and_a_new_enough_kernel(
    driver: str, release: str, verdict: str, copy_of: Copy, check: Check
) -> None:
    root = copy_of("peermem_by_dma_buf")
    (root / "proc/driver/nvidia/version").write_text(driver + "\n")
    (root / "proc/sys/kernel/osrelease").write_text(release + "\n")
    assert result_of(check(root, "peermem"))["verdict"] == verdict


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
