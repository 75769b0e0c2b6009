"""Generates docs/draining.md: `cd tests && python -m support.draining_page`.

For each code that is critical on a recorded machine: a healthy situation that looks like it, what keeps the two apart,
and the machines that prove it.
"""

from typing import Final

from laggard.gate.draining import DRAINING_CODES
from support.coverage import look_alikes, raised_by_probes
from support.materialise import expectation, names
from support.paths import REPOSITORY, TESTS

PAGE: Final = REPOSITORY / "docs" / "draining.md"


_HEAD: Final = (TESTS / "data" / "pages" / "draining.md").read_text()


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
    found = DRAINING_CODES[code]
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
