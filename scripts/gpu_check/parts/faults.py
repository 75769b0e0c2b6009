"""What tells of a GPU's faults, read twice: NVML's counters and the kernel's log by plain calls, and by the probes.

Where the plain reading shows a healthy GPU, no probe may find a fault.

Standard library and nvidia-ml-py for the plain reading; the probes need msgspec.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

from gpu_check.outcome import Context, Outcome, info, judged, needs_module, require_nvidia_gpu
from gpu_check.parts.gate import healthcheck

PROBES = ("gpu_ecc", "gpu_rows", "gpu_lost", "gpu_xid")
ROWS = ("rows corrected", "rows uncorrected", "rows pending", "row failure")
XID = re.compile(r"NVRM: Xid \(.*?\): (\d+)")


def run(context: Context) -> Iterator[Outcome]:
    require_nvidia_gpu()
    import pynvml  # a part that cannot import it does not run

    counters = read_counters(pynvml)
    for device, found in counters.items():
        yield info(f"{device}, NVML", ", ".join(f"{name} {value}" for name, value in found.items()))
    xids, readable = kernel_xids()
    yield info("kernel's log", f"Xid {', '.join(map(str, xids))}" if xids else readable or "no Xid in it")
    values = [value for each in counters.values() for value in each.values()]
    answered = all("handle" not in each for each in counters.values())
    healthy = answered and not xids and not any(isinstance(value, int) and value for value in values)
    try:
        import msgspec  # noqa: F401 - what the probes need
    except ModuleNotFoundError as error:
        yield info("laggard's probes", f"not run: {needs_module(error)}")
        return
    report, problem = healthcheck([flag for name in PROBES for flag in ("--only", name)], str(context.out / "state"))
    if report is None:
        yield judged("laggard's probes", False, problem)
    else:
        yield judge(report, healthy)


def read_counters(pynvml: Any) -> dict[str, dict[str, int | str]]:
    """Of each GPU, by name: a number, or why there is none."""
    pynvml.nvmlInit()
    found = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            found[f"GPU {index}"] = {"handle": str(error)}
            continue
        found[f"GPU {index}"] = dict(counters_of(pynvml, handle))
    return found


def counters_of(pynvml: Any, handle: Any) -> Iterator[tuple[str, int | str]]:
    for name, kind in (("volatile", pynvml.NVML_VOLATILE_ECC), ("aggregate", pynvml.NVML_AGGREGATE_ECC)):
        uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        yield f"uncorrected {name}", asked(pynvml, pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, kind)
    rows = asked(pynvml, pynvml.nvmlDeviceGetRemappedRows, handle)
    if isinstance(rows, str):
        yield "remapped rows", rows
    else:
        yield from zip(ROWS, map(int, rows), strict=False)


def asked(pynvml: Any, call: Any, *words: Any) -> Any:
    """The call's answer; a text where there is none."""
    try:
        return call(*words)
    except pynvml.NVMLError as error:
        return str(error)


def kernel_xids() -> tuple[list[int], str]:
    """The Xid numbers in the kernel's log; and why it cannot be read."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return [], f"cannot be read: {error}"
    if done.returncode:
        return [], f"cannot be read: {done.stderr.strip()[:200]}"
    return [int(number) for number in XID.findall(done.stdout)], ""


def judge(report: Any, healthy: bool) -> Outcome:
    """A finding on a GPU that the plain reading shows healthy is wrong; on another one it is told."""
    found = [f"{each['code']} on {each['device']}: {each['summary']}" for each in report["findings"]]
    judged_by = [each["name"] for each in report["probes"] if each["verdict"] not in ("skipped", "unknown")]
    text = "; ".join(found) or f"no finding, of {', '.join(judged_by) or 'no probe that could judge'}"
    if not healthy:
        return info("laggard's probes", f"{text} (the plain reading shows faults)")
    return judged("laggard's probes", not found, text) if found or judged_by else info("laggard's probes", text)
