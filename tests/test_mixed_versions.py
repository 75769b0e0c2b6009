"""Parts of laggard that are one change apart (docs/contracts.md), on documents made of their types: a field more is
passed over, and a field less has its default."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.collectors import Make as Documents
from support.examples import example, optional_fields, with_default, with_more, without
from support.made_pages import script
from support.paths import DATA

from laggard import wire
from laggard.collector.scrape.validation import validate_ranks, validate_report
from laggard.model import Report
from laggard.rankfile import Lane, RankFileError, RankFileReader
from laggard.rankfile.layout import VERSION
from laggard.rankfile.writer import RankFileWriter
from laggard.wire.ranks import RanksDocument

RANK_FILE = DATA / "golden" / "rank_file.gz"
"""What write_rank_file() writes."""

KINDS: dict[str, type[msgspec.Struct]] = {
    field.default: it.kind
    for it in script("format_docs").DOCUMENTS
    for field in msgspec.structs.fields(it.kind)
    if field.name == "schema"
}
"""The documents of docs/formats.md, by what stands in `schema`."""

SIGNED = (
    "laggard.confirm/1",
    "laggard.stacks_ask/1",
    "laggard.ring_ask/1",
    "laggard.ring_due/1",
    "laggard.accepted/1",
)
"""Those that are signed as a whole, or are root's word, and refused with a field that the reader does not know: what
asks for something is not half understood."""

DOCUMENTS = {schema: example(kind) for schema, kind in KINDS.items()}


@pytest.mark.parametrize("schema", sorted(DOCUMENTS.keys() - {*SIGNED}))
def test_a_field_more_is_passed_over(schema: str) -> None:
    kind, document = KINDS[schema], DOCUMENTS[schema]
    more = with_more(kind, document)
    assert more != document
    known = msgspec.json.decode(json.dumps(document), type=kind)
    assert msgspec.json.decode(json.dumps(more), type=kind) == known


@pytest.mark.parametrize("schema", sorted(DOCUMENTS))
def test_a_field_less_has_its_default(schema: str) -> None:
    """Each such field left out by itself, the others as they were; then all of them."""
    kind, document = KINDS[schema], DOCUMENTS[schema]
    fields = list(optional_fields(kind, document))
    for field in fields:
        expected = msgspec.json.decode(json.dumps(with_default(document, field)), type=kind)
        found = msgspec.json.decode(json.dumps(without(document, field)), type=kind)
        if isinstance(field.path[-1], str):
            assert found == expected, field.path
    least = document
    for field in reversed(fields):  # what is inside comes behind what holds it
        least = without(least, field)
    assert msgspec.json.decode(json.dumps(least), type=kind) is not None


@pytest.mark.parametrize("schema", SIGNED)
def test_a_signed_document_is_refused_with_a_field_more(schema: str) -> None:
    """A field that only one side knows would be in one side's signature alone: the next form has the next number."""
    document, kind = DOCUMENTS[schema], KINDS[schema]
    assert kind.__struct_config__.forbid_unknown_fields
    with pytest.raises(wire.WireError, match="unknown field"):
        wire.decode(json.dumps({**document, "added": 1}).encode(), kind)


# The agent's answers, as a collector really takes them: with bounds.

RANKS = json.loads(wire.encode(Documents.packed_node("n0", [0, 1, 2, 3], slow=2)))
REPORT = json.loads(wire.encode(Documents.report("n0", ["GPU_LOST"])))


def test_an_agents_answers_with_more_and_with_less_pass_the_collectors_checks() -> None:
    known = validate_ranks(json.dumps(RANKS).encode())
    assert validate_ranks(json.dumps(with_more(RanksDocument, RANKS)).encode()) == known
    report = validate_report(json.dumps(REPORT).encode())
    assert validate_report(json.dumps(with_more(Report, REPORT)).encode()) == report
    for kind, document, check in (
        (RanksDocument, RANKS, validate_ranks),
        (Report, REPORT, validate_report),
    ):
        for field in optional_fields(kind, document):
            check(json.dumps(without(document, field)).encode())


# The rank file.

IDENTITY = {
    **{"job_id": "job", "rank": 3, "local_rank": 1, "world_size": 8, "node": "n0", "gpu": None, "attempt": 2},
    **{"wall_ns": 1_700_000_000_000_000_000, "monotonic_ns": 5_000_000_000, "pid": 4242},
}
PHASES = (100, 200, 300, 100, 0, 0, 0, 0, 50)
LANES = (Lane("all_reduce", "dp", "dp:0-7", -1), Lane("send", "pp", "pp:0-1", 4))


def write_rank_file(folder: Path, identity: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    writer = RankFileWriter(str(folder), identity)
    for lane in LANES:
        writer.add_lane(lane)
    for step in range(3):
        writer.write_step(step, 1000 * step, 1000 * step + 900, *PHASES, 250, 4096)
    writer.write_counters(
        (3, 2, 2700, 1500, *(3 * it for it in PHASES), 750, 2, 1, 3 * 4096), (4, 100, 1 << 20, 5, 200, 2 << 20)
    )
    writer.write_collectives(2, [1, 2000, 2100, 50, 1 << 20])
    content = Path(writer.path).read_bytes()
    writer.close()
    path = folder / "3.rank"
    path.write_bytes(content)
    return path


def content(path: Path) -> tuple[Any, ...]:
    with RankFileReader(str(path)) as file:
        return (file.identity, file.lanes(), file.counters(), file.steps(), file.collectives())


def test_the_version_of_a_rank_file_stands_for_its_layout(tmp_path: Path) -> None:
    kept = tmp_path / "kept.rank"
    kept.write_bytes(gzip.decompress(RANK_FILE.read_bytes()))
    assert VERSION == 4, "a file of the new version takes the place of the one that is kept"
    identity, lanes, counters, steps, collectives = content(kept)
    assert {name: identity[name] for name in IDENTITY} == IDENTITY and lanes == LANES
    assert (counters.steps, counters.last_step, counters.step_ns) == (3, 2, 2700)
    assert counters.lanes == ((4, 100, 1 << 20), (5, 200, 2 << 20))
    assert [(it.step, it.start, it.end, it.phases, it.waited) for it in steps] == [
        (step, 1000 * step, 1000 * step + 900, PHASES, 250) for step in range(3)
    ]
    assert [tuple(it) for it in collectives] == [(2, 0, 1, 2000, 2100, 50, 1 << 20)]


def test_a_ranks_identity_may_say_more_and_less(tmp_path: Path) -> None:
    more = content(write_rank_file(tmp_path / "more", {**IDENTITY, "added": {"of": [1, None]}}))
    plain = content(write_rank_file(tmp_path / "plain", IDENTITY))
    assert {name: more[0][name] for name in IDENTITY} == IDENTITY and more[1:] == plain[1:]
    least = {
        name: IDENTITY[name]
        for name in ("job_id", "rank", "local_rank", "world_size", "node", "attempt", "wall_ns", "monotonic_ns")
    }
    assert content(write_rank_file(tmp_path / "least", least))[1:] == plain[1:]


def test_a_rank_file_of_another_version_is_refused_and_not_guessed_at(tmp_path: Path) -> None:
    path = write_rank_file(tmp_path / "other", IDENTITY)
    head = bytearray(path.read_bytes())
    place = head.index(VERSION, 4)
    head[place] = VERSION + 1
    path.write_bytes(head)
    with pytest.raises(RankFileError, match="another version"):
        content(path)
