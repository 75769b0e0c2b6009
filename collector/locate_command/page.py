"""Gathers what the page of `laggard locate --html` shows, from a collector or a recording, and writes it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from laggard.collector.job_words import OTHER_VERSION, ask_for, by_key, job_text
from laggard.collector.locate_command.whole_file import write_whole
from laggard.collector.web.documents import HeatDocument, NodeFindingsDocument, SummaryDocument, TimelineDocument
from laggard.collector.web.heatmap import empty_heatmap, heatmap_document
from laggard.collector.web.page_html import ROWS, KeptPage, culprit_ranks, kept_html
from laggard.collector.web.summary import recorded_summary
from laggard.collector.web.timeline import timeline_document
from laggard.kit.address import without_login
from laggard.kit.users import user_text
from laggard.kit.words import printable_line
from laggard.model import JobKey, Location
from laggard.recommend.advice.situation import Situation, with_job
from laggard.recommend.advice.values import Recommendation
from laggard.recommend.advice.watched import recommend_watched
from laggard.recording.judged import JudgedRecording
from laggard.wire.job_words import recorded_text
from laggard.wire.nodes import NodeFinding

Document = TypeVar("Document")


def page_of_collector(url: str, location: Location, job: str | None) -> KeptPage:
    """The page of the job that a collector has just given `location` of. Raises UsageError."""
    query = {"job": job} if job else {}
    timeline = _looked_at(url, query)
    summary = _ask(url, "summary", query, SummaryDocument)
    findings = _ask(url, "findings", {}, NodeFindingsDocument)
    people_reach = summary.external_url or without_login(url)
    return KeptPage(
        summary=summary,
        heat=_ask(url, "ranks", {**query, "rows": str(ROWS)}, HeatDocument),
        timeline=timeline,
        findings=_of_culprits(findings.findings, summary.location),
        recommendation=recommendation_of_collector(url, job),
        job=_watched_text(location, summary),
        source=f"From the collector at {people_reach}.",
        written=_now(),
        collector=people_reach,
    )


def _looked_at(url: str, query: Mapping[str, str]) -> TimelineDocument:
    """The timeline with single collectives, for which a collector asks the agents in a round that begins after somebody
    looked: a second later any that it calls fresh. Raises UsageError."""
    first = _ask(url, "timeline", query, TimelineDocument)
    if first.groups or not first.steps or not any(row.state == "running" for row in first.rows):
        return first
    time.sleep(1.0)
    _ask(url, "location", {**query, "fresh": "1"}, Location)
    return _ask(url, "timeline", query, TimelineDocument)


def recommendation_of_collector(url: str, job: str | None) -> Recommendation:
    """Raises UsageError."""
    return _ask(url, "recommendation", {"job": job} if job else {}, Recommendation)


def page_of_recording(judged: JudgedRecording, paths: Sequence[str]) -> KeptPage:
    location, timings = judged.location, judged.timings
    key = str(location.job_id)
    name = recorded_text(location.job_id, location.owner, timings.script, timings.started_at)
    return _without_collector(
        location,
        recommend_watched(with_job(Situation(), timings, location.culprits)),
        heatmap_document(key, timings, rows=ROWS),
        timeline_document(key, timings, culprit_ranks(location)),
        f"From {', '.join(os.path.basename(os.path.normpath(path)) for path in paths[:3])}"
        + (f" and {len(paths) - 3} more." if len(paths) > 3 else "."),
        f"Job {name}" if name else "",
    )


def page_of_counters(location: Location, url: str) -> KeptPage:
    """The page of a verdict alone: Prometheus' counters have no steps."""
    nothing = TimelineDocument(None, [], ())
    return _without_collector(location, None, empty_heatmap(), nothing, f"From Prometheus at {without_login(url)}.")


def _without_collector(
    location: Location,
    changes: Recommendation | None,
    heat: HeatDocument,
    timeline: TimelineDocument,
    source: str,
    job: str = "",
) -> KeptPage:
    return KeptPage(recorded_summary(location), heat, timeline, (), changes, job or _job_text(location), source, _now())


def write_page(path: str, page: KeptPage) -> None:
    """Raises UsageError."""
    write_whole(path, (kept_html(page).encode(),))


def _of_culprits(findings: Sequence[NodeFinding], location: Location) -> tuple[NodeFinding, ...]:
    nodes = {node for culprit in location.culprits for node in culprit.machines}
    return tuple(found for found in findings if found.node in nodes)


def _watched_text(location: Location, summary: SummaryDocument) -> str:
    known = {} if location.owner is None else by_key(summary)
    line = known.get(JobKey(location.owner or 0, str(location.job_id)))
    return f"Job {job_text(line.job_id, line.owner, line)}" if line else _job_text(location)


def _job_text(location: Location) -> str:
    owner = f" of {user_text(location.owner)}" if location.owner is not None else ""
    return printable_line(f"Job {location.job_id}{owner}") if location.job_id else ""


def _ask(url: str, name: str, query: Mapping[str, str], kind: type[Document]) -> Document:
    return ask_for(url, name, query, kind, f"{OTHER_VERSION}: {name}")


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z")
