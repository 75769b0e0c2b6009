"""Generates docs/findings/README.md: `cd tests && python -m support.findings_table`."""

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from laggard.catalogue.findings import FINDINGS, FindingType
from support.coverage import ELSEWHERE, firing, look_alikes, probes_raising
from support.job_logs import jobs_firing, jobs_near
from support.materialise import materialise
from support.nccl_logs import logs_firing, logs_near
from support.paths import REPOSITORY, TESTS

README = REPOSITORY / "docs" / "findings" / "README.md"

_HEAD = (TESTS / "data" / "pages" / "findings.md").read_text()


def table(raised_by: Callable[[str], Sequence[str]]) -> str:
    """Returns the README. `raised_by` returns the probes that raise a code."""
    return _HEAD + "".join(_row(finding_type, raised_by) for finding_type in sorted(FINDINGS, key=lambda it: it.code))


def _row(finding_type: FindingType, raised_by: Callable[[str], Sequence[str]]) -> str:
    fires = firing(finding_type.code) or logs_firing(finding_type.code) or jobs_firing(finding_type.code)
    if finding_type.later:
        raised = f"not yet: {finding_type.later}"
    elif finding_type.code in ELSEWHERE or not fires:
        raised = ELSEWHERE.get(finding_type.code, "")
    else:
        raised = ", ".join(f"`{probe}`" for probe in raised_by(finding_type.code))
    cells = (
        f"[{finding_type.code}]({finding_type.code}.md)",
        finding_type.severity.value,
        finding_type.action,
        finding_type.summary,
        raised,
        fires[0] if fires else "",
        ", ".join([*look_alikes(finding_type.code), *logs_near(finding_type.code), *jobs_near(finding_type.code)]),
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        machine = functools.cache(lambda name: materialise(name, Path(folder) / name))
        README.write_text(table(lambda code: probes_raising(code, machine)))
