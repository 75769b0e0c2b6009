"""Parts of laggard that are one change apart (docs/development/contracts.md), on documents made of their types: a
field more is passed over, and a field less has its default."""

import copy
import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import inspect
from support.collectors import Make as Documents
from support.made_pages import script
from support.paths import DATA

from laggard import wire
from laggard.collector.scrape.validation import validate_ranks, validate_report
from laggard.model import Report
from laggard.rankfile import Lane, RankFileError, RankFileReader
from laggard.rankfile.layout import VERSION
from laggard.rankfile.writer import RankFileWriter
from laggard.wire.ranks import RanksDocument

MAX_DEPTH = 6
"""Below, what holds itself is empty."""

UNKNOWN = "added"


class Optional(NamedTuple):
    """A field of a document that may be left out: the keys and places that lead to it, and its default as JSON."""

    path: tuple[str | int, ...]
    default: Any


def example(kind: type[msgspec.Struct]) -> Any:
    """A document as JSON has it, in which every field, list and object has something."""
    return _example(inspect.type_info(kind), "value", 0)


def _example(kind: inspect.Type, name: str, depth: int) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _example(kind.type, name, depth)
    maker: Callable[[Any, str, int], Any] | None = _MAKERS.get(type(kind))
    assert maker, f"no example of {kind}"
    return maker(kind, name, depth)


def _text(kind: inspect.StrType, name: str, depth: int) -> str:
    """The field's name, or what fits its pattern, which may be a choice of words."""
    pattern = re.compile(kind.pattern or "")
    words: list[str] = re.findall(r"\w+", kind.pattern or "")
    fitting = [it for it in (name, "A", *words) if pattern.search(it) and len(it) >= (kind.min_length or 0)]
    assert fitting, f"no text for {name} fits {kind.pattern}"
    return fitting[0][: kind.max_length]


def _number(kind: inspect.IntType | inspect.FloatType, name: str, depth: int) -> Any:
    least = kind.ge if kind.ge is not None else kind.gt
    number = 1 if least is None or least < 1 else int(least) + 1
    most = kind.le if kind.le is not None else kind.lt
    number = number if most is None or number <= most else int(most)
    return number if isinstance(kind, inspect.IntType) else number + (0.5 if most is None or number < most else 0)


def _list(kind: Any, name: str, depth: int) -> list[Any]:
    return [] if depth > MAX_DEPTH else [_example(kind.item_type, name, depth + 1)] * max(1, kind.min_length or 0)


def _union(kind: inspect.UnionType, name: str, depth: int) -> Any:
    if depth > MAX_DEPTH and any(isinstance(it, inspect.NoneType) for it in kind.types):
        return None
    chosen = next(it for it in kind.types if not isinstance(it, inspect.NoneType))
    return _example(chosen, name, depth)


def _struct(kind: inspect.StructType, name: str, depth: int) -> Any:
    values = {field.encode_name: _example(field.type, field.name, depth + 1) for field in kind.fields}
    for field in kind.fields:
        if field.name == "schema" and isinstance(field.default, str):
            values["schema"] = field.default
        elif values[field.encode_name] == field.default and isinstance(field.default, bool | int | float):
            values[field.encode_name] = not field.default if field.default is True else field.default + 1
    if kind.array_like:
        return list(values.values())
    return {**({kind.tag_field: kind.tag} if kind.tag_field else {}), **values}


_MAKERS: dict[type[inspect.Type], Callable[[Any, str, int], Any]] = {
    inspect.StrType: _text,
    inspect.IntType: _number,
    inspect.FloatType: _number,
    inspect.BoolType: lambda kind, name, depth: True,
    inspect.NoneType: lambda kind, name, depth: None,
    inspect.AnyType: lambda kind, name, depth: {"key": [1, "value", None]},
    inspect.BytesType: lambda kind, name, depth: "AAAA",
    inspect.LiteralType: lambda kind, name, depth: kind.values[-1],
    inspect.EnumType: lambda kind, name, depth: list(kind.cls)[-1].value,
    inspect.ListType: _list,
    inspect.VarTupleType: _list,
    inspect.SetType: _list,
    inspect.FrozenSetType: _list,
    inspect.CollectionType: _list,
    inspect.TupleType: lambda kind, name, depth: [_example(it, name, depth + 1) for it in kind.item_types],
    inspect.DictType: lambda kind, name, depth: {
        _key(_example(kind.key_type, name, depth + 1)): _example(kind.value_type, name, depth + 1)
    },
    inspect.UnionType: _union,
    inspect.StructType: _struct,
}


def _key(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def parts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every struct of a decoded document, the outermost first, with the keys and places that lead to it in JSON."""
    if isinstance(value, msgspec.Struct):
        yield path, value
        for number, field in enumerate(msgspec.structs.fields(value)):
            key = number if value.__struct_config__.array_like else field.encode_name
            yield from parts(getattr(value, field.name), (*path, key))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parts(item, (*path, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from parts(item, (*path, number))


def read(kind: type[msgspec.Struct], document: Any) -> Any:
    return msgspec.json.decode(json.dumps(document), type=kind)


def at(document: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def with_more(kind: type[msgspec.Struct], document: Any) -> Any:
    """The document with more wherever there may be more: a field in each object that a struct reads, an
    item behind the others of each list that one reads."""
    found = copy.deepcopy(document)
    for path, struct in parts(read(kind, document)):
        if struct.__struct_config__.forbid_unknown_fields:
            continue
        if struct.__struct_config__.array_like:
            at(found, path).append({UNKNOWN: [1, None]})
        else:
            at(found, path)[UNKNOWN] = {"of": ["what", 1, None]}
    return found


def optional_fields(kind: type[msgspec.Struct], document: Any) -> Iterator[Optional]:
    """Each field that may be left out."""
    for path, struct in parts(read(kind, document)):
        for number, field in enumerate(msgspec.structs.fields(struct)):
            if field.required:
                continue
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            key = number if struct.__struct_config__.array_like else field.encode_name
            yield Optional((*path, key), msgspec.to_builtins(default))


def with_default(document: Any, field: Optional) -> Any:
    found = copy.deepcopy(document)
    at(found, field.path[:-1])[field.path[-1]] = field.default
    return found


def without(document: Any, field: Optional) -> Any:
    """The document without the field; in a list, without what follows, too."""
    found = copy.deepcopy(document)
    place = at(found, field.path[:-1])
    if isinstance(place, list):
        del place[int(field.path[-1]) :]
    else:
        del place[field.path[-1]]
    return found


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
    assert read(kind, more) == read(kind, document)


@pytest.mark.parametrize("schema", sorted(DOCUMENTS))
def test_a_field_less_has_its_default(schema: str) -> None:
    """Each such field left out by itself, the others as they were; then all of them."""
    kind, document = KINDS[schema], DOCUMENTS[schema]
    fields = list(optional_fields(kind, document))
    for field in fields:
        found = read(kind, without(document, field))
        if isinstance(field.path[-1], str):
            assert found == read(kind, with_default(document, field)), field.path
    least = document
    for field in reversed(fields):  # what is inside comes behind what holds it
        least = without(least, field)
    assert read(kind, least) is not None


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
