"""What a run did not test for want of a program: one line at its end, since among thousands of tests nobody sees a
skipped folder."""

import re
from collections.abc import Iterable
from typing import Final

PROGRAMS: Final = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm"),
    *("SLURM", "prometheus-alertmanager", "prometheus", "promtool", "chromium", "playwright", "axe-core"),
    "victoria-metrics",
    *("shellcheck", "systemd-analyze", "gcc", "psycopg", "PostgreSQL", "C compiler", "virtual machine"),
)
"""As reasons name them: a test was skipped for want of those that its reason begins with, as `needs kubectl: ...`."""

_NAMED: Final = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}" for name in PROGRAMS), re.IGNORECASE)


def for_want_of_programs(skipped: Iterable[tuple[str, str]]) -> str:
    """One line; empty where nothing was skipped so. `skipped`: of each skipped test its id, such as
    tests/kubernetes/test_helm.py::test_x, and its reason."""
    parts: dict[str, list[set[str]]] = {}
    for test, reason in skipped:
        if programs := _programs(reason):
            parts.setdefault(test.removeprefix("tests/").partition("/")[0].partition("::")[0], []).append(programs)
    told = (f"{part} ({', '.join(sorted(set().union(*wanted)))})" for part, wanted in sorted(parts.items()))
    count = sum(map(len, parts.values()))
    return f"NOT TESTED, {count} skipped for want of a program: {'; '.join(told)}" if parts else ""


def _programs(reason: str) -> set[str]:
    """Those that the reason begins with. What follows a colon, semicolon or bracket explains, and may name others."""
    spelt = {name.lower(): name for name in PROGRAMS}
    begin = re.split(r"[:;(]", reason.removeprefix("Skipped: "), maxsplit=1)[0]
    return {spelt[found.lower()] for found in _NAMED.findall(begin)}
