"""Writes docs/openapi/: what agent, collector and controller answer over HTTP, as OpenAPI 3.1 documents.

    .venv/bin/python scripts/openapi.py

The documents' schemas come from the types that the daemons encode, the parameters from those by which they check what
they are asked (web/questions.py). The routes are listed here; tests hold them equal to the daemons', and ask real
daemons at random.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from laggard import __version__
from laggard.agent.web.routes import ErrorBody
from laggard.agent.web.stacks import AskStacks, Collectives, Ranks, Stacks
from laggard.catalogue.findings import all_types
from laggard.collector.incidents.incident import IncidentsDocument
from laggard.collector.node_history import NodeHistoryDocument
from laggard.collector.web import documents
from laggard.collector.web import questions as collector
from laggard.collector.web.rings import NewestRing
from laggard.model import Location, Report
from laggard.recommend.advice.values import Recommendation
from laggard.wire.digest import Digest
from laggard.wire.exclusion import ConfirmAsk, ConfirmedDocument, ExclusionsDocument
from laggard.wire.idle_rings import RingAsk, RingDue
from laggard.wire.nodes import DrainsDocument, NodesDocument, RingsDocument
from laggard.wire.query import Schema, parameters
from laggard.wire.ranks import CollectivesDocument, RanksDocument
from laggard.wire.stacks import StacksAsk, StacksAsked, StacksDocument

FOLDER = Path(__file__).parents[1] / "docs" / "openapi"
TEXT, HTML, METRICS, LINES = "text/plain", "text/html", "text/plain; version=0.0.4", "application/x-ndjson"
OPEN_METRICS = "application/openmetrics-text"
ANY_FILE = "*/*"


class Question(NamedTuple):
    """One operation. `answers`: the type of the document, or the content types. `asked`: the type of its parameters.
    `refusals`: its own statuses, beside those of the whole daemon. `posted`: it is a POST, as all with a `body` are."""

    summary: str
    answers: Any
    asked: type[msgspec.Struct] | None = None
    refusals: tuple[int, ...] = ()
    body: Any = None
    posted: bool = False


COMMON = {
    "/metrics": Question("Its metrics, for Prometheus.", (METRICS, OPEN_METRICS)),
    "/-/healthy": Question("Whether the daemon runs.", (TEXT,), refusals=(503,)),
    "/-/ready": Question("Whether it has something to tell.", (TEXT,), refusals=(503,)),
}
AGENT = {
    "/": Question("A page for people.", (HTML,)),
    **COMMON,
    "/api/v1/report": Question("The health of the node, by its last round of probes.", Report),
    "/api/v1/ranks": Question("The ranks that run on the node.", RanksDocument, Ranks),
    "/api/v1/collectives": Question("The last collectives of some ranks.", CollectivesDocument, Collectives),
    "/api/v1/stacks": Question(
        "The stacks that ranks took of themselves, for who has the token. docs/stacks.md",
        StacksDocument,
        Stacks,
        (401, 403),
    ),
    "/api/v1/stacks/ask": Question(
        "Asked by who has the token: ranks are to take their stacks.",
        StacksAsked,
        AskStacks,
        (401, 403, 404, 429, 503),
        posted=True,
    ),
}
COLLECTOR = {
    "/": Question("The page.", (HTML,), collector.OfJob),
    "/page/{name}": Question("A file of the page.", (ANY_FILE,), refusals=(404,)),
    "/findings/{code}": Question("The page of a finding's code; HTML for browsers.", (TEXT, HTML), refusals=(404,)),
    "/runbooks/{alert}": Question("What to do about an alert; HTML for browsers.", (TEXT, HTML), refusals=(404,)),
    **COMMON,
    "/api/v1/nodes": Question("Each agent as it was last found.", NodesDocument, collector.Nodes),
    "/api/v1/tiles": Question("All nodes in short: the fleet's tiles.", documents.TilesDocument),
    "/api/v1/rings/newest": Question("The newest ring that measured pairs.", NewestRing),
    "/api/v1/links": Question(
        "Where else the metrics of a node, a job or a rank can be seen.", documents.LinksDocument, collector.Links
    ),
    "/api/v1/findings": Question(
        "The findings of all nodes, worst first.", documents.NodeFindingsDocument, collector.Findings
    ),
    "/api/v1/drains": Question("Whether one more failing node may be drained.", DrainsDocument, collector.OfNode),
    "/api/v1/exclusions": Question(
        "The nodes that the next job is to leave out, the worst first. docs/tasks/exclude.md",
        ExclusionsDocument,
        collector.Exclusions,
    ),
    "/api/v1/confirm": Question(
        "Told by an operator who has the token: a suspect was measured. docs/tasks/exclude.md",
        ConfirmedDocument,
        refusals=(403, 409),
        body=ConfirmAsk,
    ),
    "/api/v1/rings": Question("Which nodes are to measure each other next.", RingsDocument, collector.Rings),
    "/api/v1/location": Question(
        "The verdict about a job: who is slow or hangs, and why.", Location, collector.Fresh, (409,)
    ),
    "/api/v1/digest": Question(
        "A job in a few kilobytes, with which other runs are compared.", Digest, collector.Run, refusals=(404, 409)
    ),
    "/api/v1/recording": Question(
        "All that is held of a job, for `laggard locate --trace`.", (LINES,), collector.Fresh, (404, 409, 503)
    ),
    "/api/v1/summary": Question("What the page shows first.", documents.SummaryDocument, collector.Summary),
    "/api/v1/ranks": Question(
        "The heat map of a job: ranks by steps.", documents.HeatDocument, collector.HeatMap, (409,)
    ),
    "/api/v1/timeline": Question(
        "The last steps of some ranks, each beside a peer.", documents.TimelineDocument, collector.Timeline, (409,)
    ),
    "/api/v1/stacks": Question(
        "Where in the code a job's ranks were when they were last asked.", StacksDocument, collector.Stacks, (404, 409)
    ),
    "/api/v1/stacks/ask": Question(
        "Asked by an operator who has the token: ranks are to take their stacks. docs/stacks.md",
        StacksAsked,
        refusals=(403, 404, 409),
        body=StacksAsk,
    ),
    "/api/v1/targets": Question("The agents, for Prometheus' http_sd.", tuple[documents.ScrapeTargets, ...]),
    "/api/v1/incidents": Question("Culprits over time, the latest first.", IncidentsDocument, collector.Incidents),
    "/api/v1/history": Question("What a machine has behind it.", NodeHistoryDocument, collector.History),
    "/api/v1/recommendation": Question("What to change for a job.", Recommendation, collector.OfJob, (409,)),
    "/api/v1/rings/due": Question(
        "Asked by an idle node that has the token: whether a ring is due. docs/rings.md",
        RingDue,
        refusals=(403, 409),
        body=RingAsk,
    ),
}
IN_PATH = {
    "name": ["page.js"],
    "code": [finding.code for finding in all_types()],
    "alert": ["LaggardRankHung"],
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
    401: "The token is another.",
    403: "The token is another, or there is none.",
    404: "There is no such thing.",
    405: "GET and HEAD alone, or POST where that is listed.",
    408: "The question took too long to come.",
    409: "Several users' jobs have this name, or the question came before.",
    414: "The target is too long.",
    421: "The Host is not a name of this daemon: allowed_hosts.",
    429: "Asked a moment ago: Retry-After says when again.",
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
    if listed := [*in_path, *(parameters(question.asked) if question.asked else ())]:
        operation["parameters"] = listed
    if question.body is not None:
        body = {"application/json": {"schema": named[str(question.body)]}}
        operation["requestBody"] = {"required": True, "content": body}
    error = {daemon.error[0]: {"schema": named[str(daemon.error[1])]}}
    refusals = sorted({*question.refusals, *daemon.refusals})
    operation["responses"] = {
        "200": {"description": "The answer.", "content": _content(question, named)},
        # Whether it is healthy is said in text by all of them.
        **{str(status): {"description": WORDS[status], "content": {TEXT: {"schema": {"type": "string"}}}
                         if status == 503 and _is_content_types(question.answers) else error} for status in refusals},
    }  # fmt: skip
    return {"post" if question.posted or question.body is not None else "get": operation}


def _examples(values: list[str]) -> Schema:
    return {values[0]: {"value": values[0]}}


def _content(question: Question, named: dict[str, Schema]) -> Schema:
    if _is_content_types(question.answers):
        return {kind: {"schema": {"type": "string"}} for kind in question.answers}
    return {"application/json": {"schema": named[str(question.answers)]}}


def _is_content_types(kind: Any) -> bool:
    return isinstance(kind, tuple)


def _dedented(value: Any) -> Any:
    """The value with docstrings as msgspec 0.23 has them: 0.22 left their indentation."""
    if isinstance(value, dict):
        return {
            name: inspect.cleandoc(each) if name == "description" and isinstance(each, str) else _dedented(each)
            for name, each in value.items()
        }
    return [_dedented(each) for each in value] if isinstance(value, list) else value


def texts() -> dict[str, str]:
    """The files, by name."""
    return {f"{name}.json": f"{json.dumps(_dedented(document(each)), indent=1)}\n" for name, each in DAEMONS.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
