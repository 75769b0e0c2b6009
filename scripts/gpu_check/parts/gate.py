"""`laggard healthcheck` on this machine: its GPU probes, or with the word `active` those that load the GPUs.

Whether the GPUs are healthy is not judged here, only whether the probes work. Keeps the reports in the part's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from gpu_check.outcome import Context, Outcome, info, judged, require_nvidia_gpu

RUNS = 3


def run(context: Context, which: str = "") -> Iterator[Outcome]:
    require_nvidia_gpu()
    from laggard.probes.active_registry import ACTIVE_PROBES
    from laggard.probes.probe import GPU
    from laggard.probes.registry import PROBES

    if which == "active":
        names, flags, runs = [probe.name for probe in ACTIVE_PROBES], ["--active"], 1
    else:
        names = [probe.name for probe in PROBES if probe.group == GPU or probe.name == "gpu_xid"]
        flags, runs = [], RUNS
    flags += [flag for name in names for flag in ("--only", name)]
    seconds, reports = [], []
    for _ in range(runs):
        began = time.monotonic()
        report, problem = healthcheck(flags, str(context.out / "state"))
        seconds.append(f"{time.monotonic() - began:.2f}")
        if report is None:
            yield judged("healthcheck", False, problem)
            return
        reports.append(report)
    (context.out / "report.json").write_text(json.dumps(reports, indent=1))
    yield info("healthcheck", f"{reports[-1]['verdict']}, after {', '.join(seconds)} s")
    yield from probes(reports[-1])


def healthcheck(flags: list[str], state: str) -> tuple[Any, str]:
    """Returns the report, or None and why there is none."""
    command = [sys.executable, "-m", "laggard", "healthcheck", "--no-agent", "--format", "json", *flags]
    environ = {**os.environ, "LAGGARD_STATE_DIR": state}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = {}
    if done.returncode not in (0, 1, 2) or "probes" not in report:
        return None, f"ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1][:300]}"
    return report, ""


def probes(report: Any) -> Iterator[Outcome]:
    """One line a probe. A probe that failed, unlike one that is unknown, is a defect in laggard."""
    for probe in report["probes"]:
        found = [report["findings"][place] for place in probe.get("findings", ())]
        text = f"{probe['verdict']} in {probe['elapsed_seconds']:.2f} s {probe['reason']}".strip()
        texts = [f"{each['severity']} {each['code']} {each['device']}: {each['summary']}" for each in found]
        if probe["verdict"] in ("skipped", "unknown") and "failed:" not in probe["reason"]:
            yield info(probe["name"], "; ".join((text, *texts)))  # it judged nothing: that proves nothing
        else:
            yield judged(probe["name"], "failed:" not in probe["reason"], "; ".join((text, *texts)))
