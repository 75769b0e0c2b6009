"""The nodes of a fleet as a few spans: gpu-0000 to gpu-0420 are fit, gpu-0421 fails. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import structs

from laggard.collector.web.chosen_nodes import name_of, tone_of, worst_first
from laggard.collector.web.documents import TilesDocument, TileSpan
from laggard.text.words import natural
from laggard.wire.nodes import NodeRow

MAX_TILES: Final = 8192
MAX_CODES: Final = 4
"""The most codes of findings that a tile names."""

_NUMBERED: Final = re.compile(r"([^.]*?)(\d{1,9})([^.\d]*(?:\..*)?)")


def tiles_document(rows: Iterable[NodeRow]) -> TilesDocument:
    """The tiles in the order of names. Of more than MAX_TILES nodes those that need attention are among those shown."""
    ordered = worst_first(rows)
    shown = sorted(ordered[:MAX_TILES], key=lambda row: natural(name_of(row)))
    spans: list[TileSpan] = []
    for row in shown:
        tile = _tile(row)
        if spans and _follows(spans[-1], tile):
            spans[-1] = structs.replace(spans[-1], last=tile.last)
        else:
            spans.append(tile)
    return TilesDocument(len(ordered), len(shown), dict(Counter(map(tone_of, ordered))), tuple(spans))


def _tile(row: NodeRow) -> TileSpan:
    name, tone = name_of(row), tone_of(row)
    codes = row.findings[:MAX_CODES]
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return TileSpan(name, -1, -1, 0, "", tone, codes)
    before, digits, after = numbered.groups()
    width = len(digits) if digits.startswith("0") else 0
    return TileSpan(before, int(digits), int(digits), width, after, tone, codes)


def _follows(span: TileSpan, tile: TileSpan) -> bool:
    """Whether the tile is the span's next: of the same kind, one further on. 0999 and 1000 are as wide."""
    alike = (span.prefix, span.suffix, span.tone, span.codes) == (tile.prefix, tile.suffix, tile.tone, tile.codes)
    as_wide = tile.width == span.width or (tile.width == 0 and len(str(tile.last)) == span.width)
    return alike and as_wide and tile.first == span.last + 1 and span.first >= 0
