"""Generates docs/draining.md: `cd tests && python -m support.draining_page`.

For each code that is critical on a recorded machine: a healthy situation that looks like it, what keeps the two apart,
and the machines that prove it.
"""

from __future__ import annotations

from typing import Final

from laggard.gate.draining import read_rule
from support.coverage import look_alikes, raised_by_probes
from support.materialise import expectation, names
from support.paths import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "draining.md"


_HEAD: Final = """# What takes a node away

`python -m support.draining_page` in `tests/` generates this page from the recorded machines in `tests/data/machines`.
`laggard healthcheck --explain-drain` says the same of one node: each code that can take it, and what there is of it
now.

A critical finding takes a node out of service: SLURM drains it, Kubernetes taints it. So each code that probes can make
critical has an answer to the question what healthy machine looks like it, and two machines that show it: one that is
taken, and one, as like it as can be, that stays. A machine that stays has no finding, or a warning.

The rules behind the answers:

- A comparison is made of what both ends can do, as far as both are seen. Elsewhere peers decide, and peers alone are a
  warning.
- What somebody has set, for one device or for all, is a warning: only its owner knows whether it is meant.
- What a log says is a warning until something that is true now confirms it.
- The witness is the kernel's, the driver's or the hardware's. A name that a user can choose proves nothing.
- After boot there is a time in which things are not ready yet: `CONNECTING_SECONDS` of the fabric,
  `ACTIVATING_SECONDS` of RDMA ports, `STARTING_SECONDS` of the fabric manager. What is not ready later is critical.
- What is the same everywhere on a node is more likely a setting, the site's power or a switch than eight faults.

| code | healthy, and looks like it | what keeps them apart | is taken | stays |
|---|---|---|---|---|
"""


def critical_codes() -> list[str]:
    """The codes that are critical on some recorded machine."""
    return [code for code in sorted(raised_by_probes()) if taken(code)]


def staying(code: str) -> list[str]:
    """The machines that look like the fault `code` and are not taken for it: with a warning, or without a finding."""
    warned = [name for name in names() if "warning" in _severities(name, code) and not _is_critical(name, code)]
    return [*warned, *look_alikes(code)]


def page() -> str:
    return _HEAD + "".join(_row(code) for code in critical_codes())


def taken(code: str) -> list[str]:
    return [name for name in names() if _is_critical(name, code)]


def _is_critical(name: str, code: str) -> bool:
    return "critical" in _severities(name, code)


def _severities(name: str, code: str) -> set[str]:
    return {severity for found, severity, _ in expectation(name)["findings"] if found == code}


def _row(code: str) -> str:
    found = read_rule(code)
    cells = (
        f"[{code}](findings/{code}.md)",
        found.healthy,
        found.apart,
        ", ".join(taken(code)),
        ", ".join(staying(code)),
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
