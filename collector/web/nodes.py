"""The documents about nodes: those that are asked for, in order, a fleet as a few spans, and the agents as targets
for Prometheus. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.outliers import fleet_lines
from laggard.collector.web.documents import ScrapeTargets, TilesDocument, TileSpan
from laggard.kit.words import natural
from laggard.locate.describe import culprit_text
from laggard.model import Culprit
from laggard.wire.job_words import recorded_text
from laggard.wire.nodes import NodeFinding, NodeRow, NodesDocument

MAX_SKIPPED_LINES: Final = 256
"""The most lines of skipped probes, of 200 characters at most."""

_STATES: Final = ("garbage", "down", "slow", "waiting", "up")


class NodesAsked(NamedTuple):
    """`limit`: so many nodes, those first that need attention; None: all, as they are listed. `names`: of these names
    alone. `find`: of those whose name or address contains it, in capitals or not. `job`: whose nodes these are."""

    limit: int | None = None
    names: Collection[str] | None = None
    find: str = ""
    job: str | None = None


def nodes_of(job: JobSnapshot | None) -> frozenset[str] | None:
    """The nodes on which a job runs, with those of its culprits; None where nothing says which, as of a job without
    hooks."""
    names = {node for node in job.timings.nodes if node} if job else set()
    if job is None or not names:
        return None
    return frozenset(names.union(*(culprit.machines for culprit in job.location.culprits)))


def nodes_document(snapshot: ClusterSnapshot, asked: NodesAsked) -> NodesDocument:
    """The rows without a limit are as they were held, with the places of their lines; with one they come without
    `ring_pairs`, which newest_ring() has."""
    rows = [row for row in snapshot.nodes if _is_asked(row, asked)]
    culprits = culprit_nodes(snapshot.jobs)
    shown = tuple(rows)
    if asked.limit is not None:
        first = _worst_first(rows, culprits)[: asked.limit]
        shown = tuple(structs.replace(row, ring_pairs=None) for row in first)
    lines = skipped_lines(shown, snapshot.skipped)
    places = {line: place for place, line in enumerate(lines)}
    return NodesDocument(
        nodes=tuple(structs.replace(row, skipped_as=places.get(snapshot.skipped.get(row.url, ""))) for row in shown),
        total=len(rows),
        answering=sum(row.state == "up" for row in rows),
        failing=sum(row.verdict == "fail" for row in rows),
        unnamed=sum(row.node is None for row in snapshot.nodes),
        compared=_compared(snapshot, asked),
        job=asked.job,
        skipped=lines,
        culprits={name: culprits[name] for name in map(name_of, shown) if name in culprits},
    )


def culprit_nodes(jobs: Iterable[JobSnapshot]) -> dict[str, str]:
    """The culprits of jobs that run, by node: `rank 2 on n1 is slow in forward (job pretrain)`. A node whose job's own
    code is at fault is none of theirs."""
    return {
        machine: f"{culprit_text(culprit)} (job {recorded_text(job.key.job_id, None, job.script, None)})"
        for job in jobs
        if job.running
        for culprit in reversed(job.location.culprits)
        if not _is_of_the_code(culprit)
        for machine in culprit.machines
    }


def _is_of_the_code(culprit: Culprit) -> bool:
    """Whether a line of code explains it, or it ended by itself with an error and nothing speaks of the node."""
    ended = culprit.end is not None and bool(culprit.end.exit_code) and not culprit.end.cause
    return culprit.is_in_the_code or (ended and not culprit.findings)


def skipped_lines(rows: Iterable[NodeRow], skipped: Mapping[str, str]) -> tuple[str, ...]:
    """Each line once, the most frequent first: nodes of one kind skip the same checks for the same reasons."""
    counts = Counter(line for row in rows if (line := skipped.get(row.url)))
    return tuple(line for line, _ in counts.most_common(MAX_SKIPPED_LINES))


def findings_on(findings: Iterable[NodeFinding], nodes: Collection[str] | None) -> tuple[NodeFinding, ...]:
    """Those of the nodes of these names, or all."""
    return tuple(it for it in findings if nodes is None or it.node in nodes)


def name_of(row: NodeRow) -> str:
    return row.node or row.url.partition("://")[2]


def _is_asked(row: NodeRow, asked: NodesAsked) -> bool:
    if asked.names is not None and name_of(row) not in asked.names:
        return False
    wanted = asked.find.casefold()
    return not wanted or wanted in name_of(row).casefold() or wanted in row.url.casefold()


def _attention(row: NodeRow) -> tuple[int, bool, str]:
    place = _STATES.index(row.state) if row.state in _STATES else 0
    return place, row.verdict == "ok", natural(name_of(row))


def _compared(snapshot: ClusterSnapshot, asked: NodesAsked) -> tuple[str, ...]:
    """The differences of the nodes from others of the same hardware: of those asked for by name, else of all."""
    notes = snapshot.fleet_notes if asked.names is None else ()
    return fleet_lines(findings_on(snapshot.fleet_findings, asked.names), notes)


def _tone(row: NodeRow, culprits: Collection[str]) -> str:
    """The tone of a node in the fleet, as TileSpan has it."""
    if name_of(row) in culprits:
        return "culprit"
    if row.state != "up":
        return "wait" if row.state == "waiting" else "silent"
    return {"ok": "ok", "skipped": "ok", "fail": "fail"}.get(row.verdict or "", "unknown")


def _worst_first(rows: Iterable[NodeRow], culprits: Collection[str]) -> Sequence[NodeRow]:
    """The nodes of `culprits`, then those that need attention for their own sake."""
    return sorted(rows, key=lambda row: (name_of(row) not in culprits, *_attention(row)))


MAX_TILES: Final = 8192
MAX_CODES: Final = 4
"""The most codes of findings that a tile names."""

_NUMBERED: Final = re.compile(r"([^.]*?)(\d{1,9})([^.\d]*(?:\..*)?)")


def tiles_document(snapshot: ClusterSnapshot) -> TilesDocument:
    """The tiles in the order of names. Of more than MAX_TILES nodes those that need attention are among those shown."""
    culprits = culprit_nodes(snapshot.jobs)
    ordered = _worst_first(snapshot.nodes, culprits)
    shown = sorted(ordered[:MAX_TILES], key=lambda row: natural(name_of(row)))
    spans: list[TileSpan] = []
    for row in shown:
        tile = _tile(row, _tone(row, culprits))
        if spans and _follows(spans[-1], tile):
            spans[-1] = structs.replace(spans[-1], last=tile.last)
        else:
            spans.append(tile)
    counts = Counter(_tone(row, culprits) for row in ordered)
    return TilesDocument(len(ordered), len(shown), dict(counts), tuple(spans))


def _tile(row: NodeRow, tone: str) -> TileSpan:
    name = name_of(row)
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


def scrape_targets(nodes: Iterable[NodeRow]) -> tuple[ScrapeTargets, ...]:
    """One entry for each scheme: Prometheus takes addresses without a scheme, and the scheme as a label."""
    by_scheme: dict[str, list[str]] = {}
    for row in nodes:
        scheme, _, address = row.url.partition("://")
        by_scheme.setdefault(scheme, []).append(address)
    return tuple(
        ScrapeTargets(tuple(addresses), {} if scheme == "http" else {"__scheme__": scheme})
        for scheme, addresses in by_scheme.items()
    )
