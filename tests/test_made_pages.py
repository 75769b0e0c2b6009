"""docs/metrics.md and docs/formats.md: made from the code, current, and complete."""

from __future__ import annotations

import re

from support.made_pages import expect_current, script
from support.paths import REPOSITORY

from laggard.catalogue.metrics import METRICS

SCHEMA = re.compile(r"\"(laggard\.[a-z_]+/\d+)\"")


def test_the_page_of_all_metrics_is_current_and_says_who_serves_each() -> None:
    written = expect_current("metrics_docs", "metrics.md")
    assert not script("metrics_docs").left_out(), "metrics that no exporter of scripts/metrics_docs.py serves"
    missing = [metric.name for metric in METRICS if f"| `{metric.name}` | {metric.kind} |" not in written]
    assert not missing, missing


def test_the_page_of_all_formats_is_current_and_has_every_document() -> None:
    written = expect_current("format_docs", "formats.md")
    sources = [path for path in (REPOSITORY / "src" / "laggard").rglob("*.py") if path.is_file()]
    for folder in ("agent", "collector", "probes", "trainer_hooks"):
        sources += (REPOSITORY / folder).rglob("*.py")
    named = {schema for path in sources for schema in SCHEMA.findall(path.read_text(encoding="utf-8"))}
    missing = sorted(schema for schema in named if f"`{schema}`" not in written)
    assert len(named) > 20 and not missing, f"scripts/format_docs.py has no {', '.join(missing)}"


def test_units_follow_from_names() -> None:
    unit = script("format_docs").unit
    assert [unit(name) for name in ("seconds", "size_bytes", "busbw_bytes_per_second", "opened_at", "rank")] == [
        "s", "bytes", "bytes/s", "s, Unix time", ""]  # fmt: skip
