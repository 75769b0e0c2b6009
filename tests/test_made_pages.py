"""docs/metrics.md and docs/formats.md: made from the code, current, and complete; docs/contracts.md has all notes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.made_pages import expect_current, script
from support.paths import REPOSITORY

from laggard.catalogue.metrics import METRICS

PACKAGE = REPOSITORY / "src" / "laggard"
SCHEMA = re.compile(r"\"(laggard\.[a-z_]+/\d+)\"")


def test_the_page_of_all_metrics_is_current_and_says_who_serves_each() -> None:
    written = expect_current("metrics_docs", "metrics.md")
    assert not script("metrics_docs").left_out(), "metrics that no exporter of scripts/metrics_docs.py serves"
    missing = [metric.name for metric in METRICS if f"| `{metric.name}` | {metric.kind} |" not in written]
    assert not missing, missing


def test_the_page_of_all_formats_is_current_and_has_every_document() -> None:
    written = expect_current("format_docs", "formats.md")
    sources = [path for path in PACKAGE.rglob("*.py") if path.is_file()]
    for folder in ("agent", "collector", "probes", "trainer_hooks"):
        sources += (REPOSITORY / folder).rglob("*.py")
    named = {schema for path in sources for schema in SCHEMA.findall(path.read_text(encoding="utf-8"))}
    missing = sorted(schema for schema in named if f"`{schema}`" not in written)
    assert len(named) > 20 and not missing, f"scripts/format_docs.py has no {', '.join(missing)}"


def test_the_contracts_have_every_kind_of_note_and_no_other() -> None:
    text = (REPOSITORY / "docs" / "contracts.md").read_text(encoding="utf-8")
    table = text.partition("**Notes** say")[2].partition("\n## ")[0]
    told = {kind for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for kind in re.findall(r"`(\w+)`", row)}
    rooms = (REPOSITORY / "collector", PACKAGE / "locate", PACKAGE / "recording")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for room in rooms for path in room.rglob("*.py")]
    made = {kind for tree in trees for kind in _kinds_of_notes(tree)}
    assert len(made) > 40 and not made - told, f"docs/contracts.md has no {sorted(made - told)}"
    words = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not told - words, f"no code makes {sorted(told - words)}"


def _kinds_of_notes(tree: ast.AST) -> Iterator[str]:
    """The kinds that stand in the calls that make a note, as they are written."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Note", "unknown_location"):
            kind = call.args[0] if call.args else next(each.value for each in call.keywords if each.arg == "kind")
            if isinstance(kind, ast.Constant):
                yield str(kind.value)


def test_units_follow_from_names() -> None:
    unit = script("format_docs").unit
    assert [unit(name) for name in ("seconds", "size_bytes", "busbw_bytes_per_second", "opened_at", "rank")] == [
        "s", "bytes", "bytes/s", "s, Unix time", ""]  # fmt: skip
