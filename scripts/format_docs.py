"""Writes docs/formats.md from the types of the JSON documents: their fields, types, units and docstrings.

.venv/bin/python scripts/format_docs.py > docs/formats.md
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from laggard.catalogue.command import FindingsDocument
from laggard.catalogue.metrics_command import MetricsDocument
from laggard.collector.incidents.incident import IncidentsDocument
from laggard.collector.node_history import NodeHistoryDocument
from laggard.collector.web.documents import (
    HeatDocument,
    LinksDocument,
    NodeFindingsDocument,
    SummaryDocument,
    TilesDocument,
    TimelineDocument,
)
from laggard.collector.web.rings import NewestRing
from laggard.gate.audit import GateAudit
from laggard.model import Location, Report
from laggard.recommend.advice.values import Recommendation
from laggard.reports.documents import (
    CampaignDocument,
    ModelDocument,
    NcclComparison,
    PortabilityDocument,
    ScalingDocument,
    TableDocument,
)
from laggard.rings.document import Ring
from laggard.tune.report import TuneDocument
from laggard.wire.accepted import AcceptedDocument
from laggard.wire.diagnosis import Diagnosis
from laggard.wire.digest import Comparison, Digest
from laggard.wire.exclusion import ConfirmAsk, ConfirmedDocument, ExcludeDocument, ExclusionsDocument, SuspectDocument
from laggard.wire.idle_rings import RingAsk, RingDue
from laggard.wire.nodes import DrainsDocument, NodesDocument, RingsDocument
from laggard.wire.ranks import CollectivesDocument, RanksDocument
from laggard.wire.stacks import StacksAsk, StacksAsked, StacksDocument

Struct = type[msgspec.Struct]


class Document(NamedTuple):
    kind: Struct
    where: str
    """Who makes it."""


DOCUMENTS = (
    Document(Location, "`laggard locate --format json`, `/api/v1/location` of the collector"),
    Document(Comparison, "`laggard locate --against RUN --format json`"),
    Document(Digest, "`/api/v1/digest` of the collector, for `laggard locate --against`"),
    Document(Report, "`laggard healthcheck --format json`, `/api/v1/report` of the agent"),
    Document(GateAudit, "`laggard healthcheck --explain-drain --format json`"),
    Document(Recommendation, "`laggard recommend --format json`, `/api/v1/recommendation` of the collector"),
    Document(Diagnosis, "`laggard diagnose --format json`"),
    Document(IncidentsDocument, "`laggard incidents --format json`, `/api/v1/incidents` of the collector"),
    Document(NodeHistoryDocument, "`laggard incidents --node N --format json`, `/api/v1/history` of the collector"),
    Document(Ring, "`laggard ring --format json`"),
    Document(TuneDocument, "`laggard tune --format json`"),
    Document(FindingsDocument, "`laggard findings list --format json`"),
    Document(MetricsDocument, "`laggard collector metrics list --format json`"),
    Document(RanksDocument, "`/api/v1/ranks` of the agent"),
    Document(CollectivesDocument, "`/api/v1/collectives` of the agent"),
    Document(StacksDocument, "`laggard stacks --format json`, `/api/v1/stacks` of the agent and of the collector"),
    Document(StacksAsked, "the answer to `POST /api/v1/stacks/ask` of the agent and of the collector"),
    Document(StacksAsk, "what an operator asks, `POST /api/v1/stacks/ask` of the collector"),
    Document(NodesDocument, "`/api/v1/nodes` of the collector"),
    Document(NodeFindingsDocument, "`/api/v1/findings` of the collector"),
    Document(DrainsDocument, "`/api/v1/drains` of the collector"),
    Document(RingsDocument, "`/api/v1/rings` of the collector"),
    Document(RingAsk, "what an idle node asks, `POST /api/v1/rings/due` of the collector"),
    Document(RingDue, "the answer to it"),
    Document(AcceptedDocument, "`laggard healthcheck --accept --format json`, and the file that it writes"),
    Document(ExclusionsDocument, "`/api/v1/exclusions` of the collector"),
    Document(ExcludeDocument, "`laggard exclude --format json`"),
    Document(SuspectDocument, "`laggard confirm --format json`"),
    Document(ConfirmAsk, "what an operator tells, `POST /api/v1/confirm` of the collector"),
    Document(ConfirmedDocument, "the answer to it"),
    Document(SummaryDocument, "`/api/v1/summary` of the collector"),
    Document(TilesDocument, "`/api/v1/tiles` of the collector"),
    Document(NewestRing, "`/api/v1/rings/newest` of the collector"),
    Document(LinksDocument, "`/api/v1/links` of the collector"),
    Document(HeatDocument, "`/api/v1/ranks` of the collector"),
    Document(TimelineDocument, "`/api/v1/timeline` of the collector"),
    Document(CampaignDocument, "`laggard tune report campaign --format json`"),
    Document(PortabilityDocument, "`laggard tune report portability --format json`"),
    Document(ScalingDocument, "`laggard tune report scaling --format json`"),
    Document(TableDocument, "`laggard tune report table --format json`"),
    Document(ModelDocument, "`laggard tune report model --format json`"),
    Document(NcclComparison, "`laggard tune report nccl --format json`"),
)

WITHOUT_A_TYPE = {
    "laggard.error/1": "`{schema, error, exit_status}`, of any command with `--format json` that could not start",
    "laggard.tune_ab/1": "`{schema, ratio, low, high, ...}`, of `laggard tune ab --format json`",
    "laggard.tuner/1": "`{schema, tables}`, or the compiled table, of `laggard tune table ... --format json`",
}

HEAD = (Path(__file__).parent / "heads" / "formats.md").read_text(encoding="utf-8")

UNITS = (
    ("_timestamp_seconds", "s, Unix time"),
    ("_bytes_per_second", "bytes/s"),
    ("_per_second", "1/s"),
    ("_seconds", "s"),
    ("_seconds_ago", "s"),
    ("_bytes", "bytes"),
    ("_ratio", "ratio"),
    ("_at", "s, Unix time"),
)


def page() -> str:
    """The whole page."""
    rest = [f"- `{schema}`: {text}" for schema, text in WITHOUT_A_TYPE.items()]
    documents = [_document(each) for each in DOCUMENTS]
    parts = [_part(kind) for kind in sorted(_parts(), key=lambda kind: kind.__name__)]
    others = "\n".join(("## Documents without a type\n", *rest, ""))
    return "\n".join((HEAD, *documents, others, "## Parts\n", *parts))


def schema_of(kind: Struct) -> str:
    """The name and version of a document."""
    (field,) = (each for each in msgspec.structs.fields(kind) if each.name == "schema")
    return str(field.default)


def _document(document: Document) -> str:
    return "\n".join((f"## `{schema_of(document.kind)}`\n", f"{document.where}.\n", *_described(document.kind)))


def _part(kind: Struct) -> str:
    return "\n".join((f"### {kind.__name__}\n", *_described(kind)))


def _described(kind: Struct) -> Iterator[str]:
    text = _own_docstring(kind)
    yield from (f"{text}\n",) if text else ()
    if kind.__struct_config__.array_like:
        yield "A JSON array with these values in this order.\n"
    yield "| field | type | unit | default | meaning |"
    yield "|---|---|---|---|---|"
    meanings, hints = dict(_meanings(kind)), typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        cells = (_shown(hints[field.name]), unit(field.name), _default(field), meanings.get(field.name, ""))
        yield f"| `{field.encode_name}` | {' | '.join(cells)} |"
    yield ""


def _parts() -> set[Struct]:
    """The types in documents that are no documents themselves."""
    found: set[Struct] = set()
    to_look = [each.kind for each in DOCUMENTS]
    while to_look:
        for hint in typing.get_type_hints(to_look.pop()).values():
            for kind in _structs(hint):
                if kind not in found and "schema" not in kind.__struct_fields__:
                    found.add(kind)
                    to_look.append(kind)
    return found


def _structs(hint: Any) -> Iterator[Struct]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in typing.get_args(hint):
        yield from _structs(inner)


_WORDS = {
    str: "text",
    bytes: "text in base64",
    int: "integer",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "any",
}


def _shown(hint: Any) -> str:
    """A type in words."""
    if hint in _WORDS:
        return _WORDS[hint]
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_shown, arguments))
    if origin is dict:
        return f"object of {_shown(arguments[1])}"
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return f"list of {_shown(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_shown, arguments))}]"
    if issubclass(hint, enum.Enum):
        return ", ".join(f"`{each.value}`" for each in hint)
    anchor = re.sub(r"[^a-z0-9]", "", schema_of(hint)) if "schema" in hint.__struct_fields__ else hint.__name__.lower()
    return f"[{hint.__name__}](#{anchor})"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{json.dumps(msgspec.to_builtins(field.default_factory()))}`"
    if field.default is msgspec.NODEFAULT:
        return ""
    return f"`{json.dumps(msgspec.to_builtins(field.default))}`"


def unit(name: str) -> str:
    """The unit, which the house's names end in."""
    if name in ("seconds", "bytes"):
        return {"seconds": "s", "bytes": "bytes"}[name]
    return next((word for end, word in UNITS if name.endswith(end)), "")


def _own_docstring(kind: Struct) -> str:
    return _plain(kind.__doc__ or "") if "__doc__" in vars(kind) else ""


def _meanings(kind: Struct) -> Iterator[tuple[str, str]]:
    """What the source says of each field: the remark behind it, or the text after it."""
    source = textwrap.dedent(inspect.getsource(kind))
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    lines = source.splitlines()
    for field, following in zip(body.body, [*body.body[1:], None], strict=True):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        remark = re.search(r"  # (.*)", lines[(field.end_lineno or 1) - 1])
        text = remark[1] if remark else ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = f"{text} {following.value.value!s}"
        yield field.target.id, _plain(text)


def _plain(text: str) -> str:
    """A docstring as Markdown: brackets are no links, and JSON says null."""
    text = re.sub(r"([\[\]|])", r"\\\1", re.sub(r"\s+", " ", text).strip())
    return re.sub(r"\bNone\b", "null", text)


if __name__ == "__main__":
    print(page(), end="")
