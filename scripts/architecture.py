"""Writes docs/development/architecture.svg: the floors of src/laggard, from the contract that import-linter enforces.

.venv/bin/python scripts/architecture.py > docs/development/architecture.svg
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
WIDTH, ROW, GAP, MARGIN = 860, 40, 8, 16

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #151a21; text-anchor: middle; }
rect { fill: #eef1f4; stroke: #8a95a3; }
.process rect { fill: #dbe8f7; stroke: #1f5fae; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8ecf1; }
  rect { fill: #1d252e; stroke: #66727f; }
  .process rect { fill: #17324f; stroke: #8cc4ff; }
}
"""
PROCESSES = {"agent", "collector", "gate", "trainer_hooks", "kubernetes"}
"""What runs for itself, and meets the others on the wire alone."""


def layers() -> list[list[str]]:
    """The floors from the top down, each with its folders and files."""
    text = PYPROJECT.read_text(encoding="utf-8")
    found = re.search(r'containers = \["laggard"\]\nexhaustive = true\nlayers = \[\n(.*?)\n\]', text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{PYPROJECT} has no layers of laggard")
    return [line.split(" | ") for line in re.findall(r'"(.*?)"', found[1])]


def picture() -> str:
    """The SVG: a row for each floor, a box for each folder or file in it."""
    floors = layers()
    height = 2 * MARGIN + len(floors) * (ROW + GAP) - GAP
    rows = [_row(names, MARGIN + place * (ROW + GAP)) for place, names in enumerate(floors)]
    title = "The floors of laggard: what stands higher imports what stands lower, never the other way"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{STYLE}</style>", *rows, "</svg>\n"])


def _row(names: list[str], top: int) -> str:
    width = (WIDTH - 2 * MARGIN - GAP * (len(names) - 1)) / len(names)
    return "\n".join(_box(name, MARGIN + place * (width + GAP), top, width) for place, name in enumerate(names))


def _box(name: str, left: float, top: int, width: float) -> str:
    kind = ' class="process"' if name in PROCESSES else ""
    box = f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW}" rx="6"/>'
    return f'<g{kind}>{box}<text x="{left + width / 2:.1f}" y="{top + ROW / 2 + 5:g}">{escape(name)}</text></g>'


if __name__ == "__main__":
    print(picture(), end="")
