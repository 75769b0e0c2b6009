"""Writes docs/openapi/: what agent, collector and controller answer over HTTP, as OpenAPI 3.1 documents.

    .venv/bin/python scripts/openapi.py

The documents' schemas come from the types that the daemons encode, bounds from the constants that they check. What a
question may have is listed here; tests hold it equal to the daemons' routes, and ask real daemons at random.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from laggard import __version__
from laggard.agent.ranks.reader import MAX_ASKED
from laggard.agent.web.routes import LARGEST_ID, MAX_SINCE, ErrorBody
from laggard.catalogue.findings import FINDINGS
from laggard.collector.fleet.ring_plan import MAX_RING_NODES, MIN_RING_NODES
from laggard.collector.incidents.incident import MAX_LIMIT, IncidentsDocument
from laggard.collector.web import documents, heatmap, timeline
from laggard.collector.web.api import LARGEST_NUMBER, LARGEST_RANK, LARGEST_SINCE
from laggard.collector.web.chosen_nodes import MAX_SEARCH_CHARACTERS
from laggard.collector.web.newest_ring import NewestRing
from laggard.collector.web.summary import MAX_JOBS
from laggard.model import Location, Report
from laggard.recommend.advice.values import Recommendation
from laggard.wire.collectives import CollectivesDocument
from laggard.wire.idle_rings import RingAsk, RingDue
from laggard.wire.nodes import DrainsDocument, NodesDocument, RingsDocument
from laggard.wire.ranks import RanksDocument

FOLDER = Path(__file__).parents[1] / "docs" / "openapi"
TEXT, HTML, METRICS, LINES = "text/plain", "text/html", "text/plain; version=0.0.4", "application/x-ndjson"
OPEN_METRICS = "application/openmetrics-text"
ANY_FILE = "*/*"

Schema = dict[str, Any]


class Question(NamedTuple):
    """One operation. `answers`: the type of the document, or the content types. `refusals`: its own statuses, beside
    those of the whole daemon."""

    summary: str
    answers: Any
    parameters: tuple[Schema, ...] = ()
    refusals: tuple[int, ...] = ()
    body: Any = None


def asked(name: str, schema: Schema, about: str, **more: Any) -> Schema:
    """A parameter of the query, which may be left out."""
    return {"name": name, "in": "query", "description": about, "schema": schema, **more}


def number(most: float, least: float = 0.0) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def whole(most: int, least: int = 0) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def one_of(names: tuple[str, ...]) -> Schema:
    return {"type": "string", "enum": list(names)}


JOB = asked("job", {"type": "string"}, "A job's key or id. Without it: the job that progressed last.")
NODE = asked("node", {"type": "string"}, "A node's name.")
OF_JOB = asked("job", {"type": "string"}, "Those of this job's nodes; with no name, of the job that progressed last.")
FIND = asked("find", {"type": "string", "maxLength": MAX_SEARCH_CHARACTERS}, "Those with this in their name.")
FRESH = asked(
    "fresh", {"type": "string"}, "1: the agents are asked again before the answer. 0, or nothing: they are not."
)
RANKS = asked(
    "ranks",
    {"type": "array", "items": whole(LARGEST_RANK), "maxItems": timeline.MAX_RANKS},
    "Ranks, with commas between them. Without: those of the culprits.",
    style="form",
    explode=False,
)
COMMON = {
    "/metrics": Question("Its metrics, for Prometheus.", (METRICS, OPEN_METRICS)),
    "/-/healthy": Question("Whether the daemon runs.", (TEXT,), refusals=(503,)),
    "/-/ready": Question("Whether it has something to tell.", (TEXT,), refusals=(503,)),
}
AGENT = {
    "/": Question("A page for people.", (HTML,)),
    **COMMON,
    "/api/v1/report": Question("The health of the node, by its last round of probes.", Report),
    "/api/v1/ranks": Question(
        "The ranks that run on the node.",
        RanksDocument,
        (asked("since", number(MAX_SINCE), "`next` of the answer before, or 0: the steps from there on, too."),),
        (400,),
    ),
    "/api/v1/collectives": Question(
        "The last collectives of some ranks.",
        CollectivesDocument,
        (
            asked("owner", whole(LARGEST_ID), "The uid of the job's owner.", required=True),
            asked("job", {"type": "string"}, "The job's id.", required=True),
            asked("rank", {"type": "array", "items": whole(LARGEST_ID), "minItems": 1, "maxItems": MAX_ASKED},
                  "The ranks.", required=True, style="form", explode=True),
        ),
        (400,),
    ),
}  # fmt: skip
COLLECTOR = {
    "/": Question("The page.", (HTML,), (JOB,)),
    "/page/{name}": Question("A file of the page.", (ANY_FILE,), refusals=(404,)),
    "/findings/{code}": Question("The page of a finding's code; HTML for browsers.", (TEXT, HTML), refusals=(404,)),
    **COMMON,
    "/api/v1/nodes": Question(
        "Each agent as it was last found.",
        NodesDocument,
        (asked("limit", whole(LARGEST_RANK), "So many: those that need attention most."), OF_JOB, NODE, FIND),
        (400,),
    ),
    "/api/v1/tiles": Question("All nodes in short: the fleet's tiles.", documents.TilesDocument),
    "/api/v1/rings/newest": Question("The newest ring that measured pairs.", NewestRing),
    "/api/v1/links": Question(
        "Where else the metrics of a node, a job or a rank can be seen.",
        documents.LinksDocument,
        (JOB, NODE, asked("rank", whole(LARGEST_RANK), "Of this rank of the job.")),
        (400,),
    ),
    "/api/v1/findings": Question(
        "The findings of all nodes, worst first.",
        documents.NodeFindingsDocument,
        (asked("limit", whole(LARGEST_RANK), "So many of them; 0: all."), OF_JOB, NODE),
        (400,),
    ),
    "/api/v1/drains": Question("Whether one more failing node may be drained.", DrainsDocument, (NODE,)),
    "/api/v1/rings": Question(
        "Which nodes are to measure each other next.",
        RingsDocument,
        (
            asked("hours", {**number(8760), "exclusiveMinimum": 0}, "Each node once in so many hours."),
            asked("nodes", whole(MAX_RING_NODES, MIN_RING_NODES), "In rings of so many."),
        ),
        (400,),
    ),
    "/api/v1/location": Question("The verdict about a job: who is slow or hangs, and why.", Location, (JOB, FRESH),
                                 (409,)),
    "/api/v1/recording": Question("All that is held of a job, for `laggard locate --trace`.", (LINES,), (JOB, FRESH),
                                  (404, 409, 503)),
    "/api/v1/summary": Question(
        "What the page shows first.",
        documents.SummaryDocument,
        (JOB, asked("limit", whole(MAX_JOBS), "So many of the jobs."), FIND),
        (400,),
    ),
    "/api/v1/ranks": Question(
        "The heat map of a job: ranks by steps.",
        documents.HeatDocument,
        (
            JOB,
            asked("measure", one_of(heatmap.MEASURES), "What decides which rank stands for a row."),
            asked("order", one_of(heatmap.ORDERS), "In which order the ranks are."),
            asked("rows", whole(heatmap.MAX_ROWS, 1), "Into so many rows they are folded."),
            asked("start", whole(LARGEST_RANK), "The place of the first that is shown."),
            asked("stop", whole(LARGEST_RANK), "The place before which the last is."),
        ),
        (400, 409),
    ),
    "/api/v1/timeline": Question(
        "The last steps of some ranks, each beside a peer.",
        documents.TimelineDocument,
        (JOB, RANKS, asked("before", whole(LARGEST_NUMBER), "The steps before this one.")),
        (400, 409),
    ),
    "/api/v1/targets": Question("The agents, for Prometheus' http_sd.", tuple[documents.ScrapeTargets, ...]),
    "/api/v1/incidents": Question(
        "Culprits over time, the latest first.",
        IncidentsDocument,
        (
            JOB,
            asked("since", number(LARGEST_SINCE), "Those that lasted at this Unix time, or began later."),
            asked("before", whole(LARGEST_NUMBER), "Those with a lower number, to read on."),
            asked("limit", whole(MAX_LIMIT, 1), "So many."),
            asked("open", {"type": "string"}, "1: those that last, alone. 0, or nothing: all."),
            NODE,
        ),
        (400,),
    ),
    "/api/v1/recommendation": Question("What to change for a job.", Recommendation, (JOB,), (409,)),
    "/api/v1/rings/due": Question(
        "Asked by an idle node that has the token: whether a ring is due. docs/rings.md",
        RingDue,
        (),
        (400, 403, 409),
        RingAsk,
    ),
}  # fmt: skip
IN_PATH = {
    "name": ["page.js"],
    "code": [finding.code for finding in FINDINGS],
}


class Daemon(NamedTuple):
    """`error`: of each refusal, the content type and the document. `port`: the default."""

    title: str
    port: int
    questions: dict[str, Question]
    error: tuple[str, Any]
    refusals: tuple[int, ...]


DAEMONS = {
    "agent": Daemon("laggard agent", 19400, AGENT, ("application/json", ErrorBody), (400, 405, 408, 414, 431)),
    "collector": Daemon("laggard collector", 19401, COLLECTOR, (TEXT, str), (400, 405, 421)),
    "controller": Daemon("laggard kubernetes controller", 19402, COMMON, (TEXT, str), (400, 405, 408, 414, 431)),
}
WORDS = {
    400: "The question cannot be understood.",
    403: "The token is another, or there is none.",
    404: "There is no such thing.",
    405: "GET and HEAD alone, or POST where that is listed.",
    408: "The question took too long to come.",
    409: "Several users' jobs have this name, or the question came before.",
    414: "The target is too long.",
    421: "The Host is not a name of this daemon: allowed_hosts.",
    431: "The head is too large.",
    503: "Not now.",
}


def document(daemon: Daemon) -> Schema:
    """The OpenAPI document of a daemon."""
    kinds = [daemon.error[1], *(kind for each in daemon.questions.values() for kind in (each.answers, each.body))]
    types = [kind for kind in kinds if kind is not None and not _is_content_types(kind)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    named = dict(zip(map(str, types), schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {"title": daemon.title, "version": __version__, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": f"http://localhost:{daemon.port}"}],
        "paths": {path: _path(path, question, daemon, named) for path, question in daemon.questions.items()},
        "components": {"schemas": components},
    }


def _path(path: str, question: Question, daemon: Daemon, named: dict[str, Schema]) -> Schema:
    operation: Schema = {"summary": question.summary}
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "examples": _examples(values)}
        for name, values in IN_PATH.items()
        if f"{{{name}}}" in path
    ]
    if parameters := [*in_path, *question.parameters]:
        operation["parameters"] = parameters
    if question.body is not None:
        body = {"application/json": {"schema": named[str(question.body)]}}
        operation["requestBody"] = {"required": True, "content": body}
    error = {daemon.error[0]: {"schema": named[str(daemon.error[1])]}}
    refusals = sorted({*question.refusals, *daemon.refusals})
    operation["responses"] = {
        "200": {"description": "The answer.", "content": _content(question, named)},
        # Whether it is healthy is said in text by all of them.
        **{str(status): {"description": WORDS[status], "content": {TEXT: {"schema": {"type": "string"}}}
                         if status == 503 else error} for status in refusals},
    }  # fmt: skip
    return {"get" if question.body is None else "post": operation}


def _examples(values: list[str]) -> Schema:
    return {values[0]: {"value": values[0]}}


def _content(question: Question, named: dict[str, Schema]) -> Schema:
    if _is_content_types(question.answers):
        return {kind: {"schema": {"type": "string"}} for kind in question.answers}
    return {"application/json": {"schema": named[str(question.answers)]}}


def _is_content_types(kind: Any) -> bool:
    return isinstance(kind, tuple)


def texts() -> dict[str, str]:
    """The files, by name."""
    return {f"{name}.json": f"{json.dumps(document(each), indent=1)}\n" for name, each in DAEMONS.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
