"""Questions that the collector's routes take: a Struct for each with parameters, as laggard.wire.query reads it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request

from laggard.collector.incidents.incident import DEFAULT_LIMIT, MAX_LIMIT
from laggard.collector.web.heatmap import MEASURES, ORDERS
from laggard.collector.web.rings import MAX_RING_NODES, MIN_RING_NODES
from laggard.collector.web.summary import DEFAULT_JOBS
from laggard.collector.web.timeline import MAX_RANKS
from laggard.wire.exclusion import MAX_SECONDS
from laggard.wire.query import Asked, Name, WrongQuestion, read_question
from laggard.wire.stacks import MAX_RANKS as MAX_STACKS

Rank = Annotated[int, Meta(ge=0, le=2**31)]
"""The number of a rank, or a place among ranks or rows."""

Number = Annotated[int, Meta(ge=0, le=2**53)]
"""The number of an incident or a step: JSON's readers keep larger ones no longer apart."""

UnixTime = Annotated[float, Meta(ge=0, le=1e11)]
"""Seconds, up to the year 5138."""

Kept = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]

Found = Annotated[str, Meta(max_length=200, description="Those with this in their name.")]
Node = Annotated[Name | None, Meta(description="A node's name.")]
Switch = Name
Measure = Literal[MEASURES]  # type: ignore[valid-type]
Order = Literal[ORDERS]  # type: ignore[valid-type]


class Question(Struct, frozen=True, kw_only=True):
    @classmethod
    def of(cls: type[Asked], request: Request) -> Asked:
        """Raises HTTPException, which Starlette answers with 400 and one line."""
        try:
            return read_question(cls, request.scope["query_string"].decode("latin-1"))
        except WrongQuestion as error:
            raise HTTPException(400, f"{error}\n") from None


class OfJob(Question, frozen=True, kw_only=True):
    job: Annotated[Name | None, Meta(description="A job's key or id. Without it: the job that loses most.")] = None

    @property
    def job_name(self) -> str | None:
        """None for the job that loses most."""
        return self.job or None


class OfNode(Question, frozen=True, kw_only=True):
    node: Node = None


class OfNodes(OfNode, frozen=True, kw_only=True):
    job: Annotated[
        Name | None, Meta(description="Those of this job's nodes; with no name, of the job that loses most.")
    ] = None


class Nodes(OfNodes, frozen=True, kw_only=True):
    limit: Annotated[Rank | None, Meta(description="So many: those that need attention most.")] = None
    find: Found = ""


class Findings(OfNodes, frozen=True, kw_only=True):
    limit: Annotated[Rank, Meta(description="So many of them; 0: all.")] = 0


class Exclusions(Question, frozen=True, kw_only=True):
    seconds: Annotated[
        Kept | None, Meta(description="For so long a node is left out that is not named again. Without: as it is set.")
    ] = None


class Rings(Question, frozen=True, kw_only=True):
    hours: Annotated[float, Meta(gt=0, le=8760, description="Each node once in so many hours.")] = 24.0
    nodes: Annotated[int, Meta(ge=MIN_RING_NODES, le=MAX_RING_NODES, description="In rings of so many.")] = 8


class Fresh(OfJob, frozen=True, kw_only=True):
    fresh: Annotated[
        Switch, Meta(description="1: the agents are asked again before the answer. 0, or nothing: they are not.")
    ] = ""


class Summary(OfJob, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=0, le=4096, description="So many of the jobs.")] = DEFAULT_JOBS
    find: Found = ""


class HeatMap(OfJob, frozen=True, kw_only=True):
    measure: Annotated[Measure, Meta(description="What decides which rank stands for a row.")] = "own"
    order: Annotated[Order, Meta(description="In which order the ranks are.")] = "rank"
    rows: Annotated[int, Meta(ge=1, le=4096, description="Into so many rows they are folded.")] = 256
    start: Annotated[Rank, Meta(description="The place of the first that is shown.")] = 0
    stop: Annotated[Rank | None, Meta(description="The place before which the last is.")] = None


class Run(OfJob, frozen=True, kw_only=True):
    run: Annotated[
        Literal["now", "first", "last", "incident"],
        Meta(
            description="now; first: the job's own first hour; last: the last healthy run of its script and size;"
            " incident: as a job of that user was when an incident began.",
        ),
    ] = "now"
    incident: Annotated[Number | None, Meta(description="The incident's id, with run=incident.")] = None


class Timeline(OfJob, frozen=True, kw_only=True):
    ranks: Annotated[
        tuple[Rank, ...],
        Meta(
            max_length=MAX_RANKS,
            description="Ranks, with commas between them. Without: those of the culprits.",
            extra_json_schema={"explode": False},
        ),
    ] = ()
    before: Annotated[Number | None, Meta(description="The steps before this one.")] = None


class Stacks(OfJob, frozen=True, kw_only=True):
    ranks: Annotated[
        tuple[Rank, ...],
        Meta(
            max_length=MAX_STACKS,
            description="Ranks, with commas between them. Without: all of the job.",
            extra_json_schema={"explode": False},
        ),
    ] = ()


class Links(OfJob, frozen=True, kw_only=True):
    node: Node = None
    rank: Annotated[Rank | None, Meta(description="Of this rank of the job.")] = None


class Incidents(OfNode, frozen=True, kw_only=True):
    job: Annotated[Name | None, Meta(description="Those of this job; with no name, of the job that loses most.")] = None
    since: Annotated[UnixTime | None, Meta(description="Those that lasted at this Unix time, or began later.")] = None
    before: Annotated[Number | None, Meta(description="Those with a lower number, to read on.")] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="So many.")] = DEFAULT_LIMIT
    open: Annotated[Switch, Meta(description="1: those that last, alone. 0, or nothing: all.")] = ""


class History(Question, frozen=True, kw_only=True):
    node: Annotated[Name, Meta(description="A node's name.")]


def is_on(switch: str) -> bool:
    return switch not in ("", "0")
