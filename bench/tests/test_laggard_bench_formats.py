"""laggard-bench's formats: its own checker of schemas agrees with jsonschema, and nothing that is read crashes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from laggard_bench import formats
from laggard_bench.formats import FormatError, checker, parse, schema

NAMES = ("answer", "truth", "recording")
CHECKS = {name: checker(name) for name in NAMES}
VALIDATORS = {name: Draft202012Validator(schema(name)) for name in NAMES}


def words_of(node: Any) -> set[str]:
    """Names and words that a schema speaks of: documents of them come near to it."""
    if isinstance(node, list):
        return {word for part in node for word in words_of(part)}
    if not isinstance(node, dict):
        return set()
    found = {word for word in node.get("enum", ()) if isinstance(word, str)} | set(node.get("required", ()))
    found |= {node["const"]} if isinstance(node.get("const"), str) else set()
    return found | {word for part in node.values() for word in words_of(part)}


WORDS = sorted({word for name in NAMES for word in words_of(schema(name))})
LEAVES = (
    st.sampled_from([*WORDS, "", "a", None, True, False, 0, 1, -1, 1.0, 17.0, 0.5, 1 << 20, 1e300])
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(1 << 40), 1 << 40)
)
VALUES = st.recursive(
    LEAVES,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(WORDS), part, max_size=6),
    max_leaves=12,
)


def from_schema(node: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Documents that hold to a schema, or nearly: now and then a part is anything."""
    if "$ref" in node:
        return from_schema(root["$defs"][node["$ref"].removeprefix("#/$defs/")], root)
    right: st.SearchStrategy[Any]
    if "enum" in node:
        right = st.sampled_from(node["enum"])
    elif "const" in node:
        right = st.just(node["const"])
    elif "properties" in node:
        parts = {name: from_schema(part, root) for name, part in node["properties"].items()}
        needed = {name: parts.get(name, VALUES) for name in node.get("required", ())}
        right = st.fixed_dictionaries(needed, optional={name: parts[name] for name in parts if name not in needed})
    elif node.get("type") == "array":
        right = st.lists(from_schema(node["items"], root), min_size=node.get("minItems", 0), max_size=3)
    elif "integer" in str(node.get("type")):
        right = st.integers(node.get("minimum", -5), 1 << 21)
    elif "string" in str(node.get("type")):
        right = st.text(max_size=4)
    else:
        right = LEAVES
    return st.integers(0, 30).flatmap(lambda chance: right if chance else VALUES)


def agree(name: str, document: Any) -> None:
    try:
        CHECKS[name](document)
    except FormatError as error:
        assert not VALIDATORS[name].is_valid(document), str(error)
        assert len(str(error)) < 2000 and str(error).isprintable()
    else:
        assert VALIDATORS[name].is_valid(document)


@pytest.mark.parametrize("name", NAMES)
def test_the_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))


@given(from_schema(schema("answer"), schema("answer")))
@settings(deadline=None)
def test_the_checker_agrees_with_jsonschema_on_answers(document: Any) -> None:
    agree("answer", document)


@given(
    st.sampled_from(sorted(schema("recording")["$defs"])).flatmap(
        lambda kind: st.tuples(st.just(kind), from_schema(schema("recording")["$defs"][kind], schema("recording")))
    )
)
@settings(deadline=None)
def test_a_line_is_checked_alike_by_its_kind_and_by_the_whole_schema(drawn: tuple[str, Any]) -> None:
    kind, line = drawn
    agree("recording", line)
    if isinstance(line, dict) and ("head" if "laggard_recording" in line else line.get("kind")) == kind:
        by_kind = Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema("recording")["$defs"]})
        assert by_kind.is_valid(line) == VALIDATORS["recording"].is_valid(line)


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_whatever_is_read_is_a_document_or_a_format_error(text: bytes) -> None:
    try:
        found = parse(text)
    except FormatError as error:
        assert str(error)
    else:
        assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"culprits": NaN}', "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"[1e999]", "too large"),
        (b"9" * 5000, "more than 19 digits"),
        (b"[" * 200_000, "nested too deeply"),
        (b"\xff", "no UTF-8"),
        (b"{", "no JSON"),
        (b" " * (formats.MAX_DOCUMENT_BYTES + 1), "longer than"),
    ],
)
def test_what_is_hostile_is_refused_in_a_line(text: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as raised:
        parse(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"verdict": "slow"}, 'lacks "culprits"'),
        ({"verdict": "bad", "culprits": []}, 'verdict: "bad" is none of ok, slow, hang, dead, unknown'),
        (
            {"verdict": "slow", "culprits": [{"kind": "link", "ranks": [1, -2]}]},
            "culprits[0].ranks[1]: -2 is less than 0",
        ),
        ({"verdict": "slow", "culprits": [{"kind": "link", "ranks": True}]}, "culprits[0].ranks: true is no array"),
        ({"verdict": "slow", "culprits": [{"kind": "link", "rank": 3}]}, "culprits[0].rank: no such field; there are"),
        ({"verdict": "slow", "culprits": [{"kind": "link", "between": ["a"]}]}, "has fewer than 2 items"),
        ({"verdict": "slow", "culprits": [], "\x1b[2J\n": 1}, '"\\u001b[2J\\n": no such field'),
        ([], "[] is no object"),
    ],
)
def test_an_answer_that_is_none_is_told_by_its_place(document: Any, problem: str) -> None:
    with pytest.raises(FormatError) as raised:
        CHECKS["answer"](document)
    assert problem in str(raised.value)


def test_a_line_that_is_too_long_costs_that_line(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b'{"a": 1}\n\n[' + b" " * (2 * formats.MAX_DOCUMENT_BYTES) + b"]\n{}")
    found = list(formats.lines(file))
    assert [number for number, _ in found] == [1, 3, 4]
    assert (parse(found[0][1]), parse(found[2][1])) == ({"a": 1}, {})
    with pytest.raises(FormatError, match="longer than"):
        parse(found[1][1])
