"""Documents of the benchmark, read within bounds and checked against their schemas. Standard library alone.

The `*.schema.json` beside this file are ordinary JSON Schema (2020-12), so that any validator can be used. The one here
knows the keywords that they use, and refuses a schema with any other.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
MAX_DOCUMENT_BYTES: Final = 4 << 20
"""The largest answer or truth, and the longest line of a recording: ten times those of jobs with 4,096 ranks."""
MAX_DIGITS: Final = 19
"""Those of an integer: below 2**63 all other programs read it as it is."""
MAX_SHOWN: Final = 60
"""How many characters of a value an error shows."""

TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: type(value) is int or (type(value) is float and math.isfinite(value)),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
}
ANNOTATIONS: Final = frozenset(("$schema", "$defs", "title", "description"))


class FormatError(ValueError):
    """A document is not what it shall be. `path`: where in it, from the outside in."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str | int] = []

    def __str__(self) -> str:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).lstrip(".")
        return f"{place}: {self.problem}" if place else self.problem


Check = Callable[[Any], None]
"""Raises FormatError where the value does not hold to the schema."""


def _no_constant(text: str) -> Any:
    raise FormatError(f"{text} is no number")


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS + 1:
        raise FormatError(f"a number of more than {MAX_DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FormatError("a number that is too large")
    return value


ANY_NUMBER: Final = json.JSONDecoder(parse_constant=_no_constant)
"""Leaves it to the schema which numbers are too large: for recordings, of which there are gigabytes."""
BOUNDED: Final = json.JSONDecoder(parse_constant=_no_constant, parse_int=_integer, parse_float=_float)


def parse(text: bytes, decoder: json.JSONDecoder = BOUNDED) -> Any:
    """A document of JSON. Raises FormatError where it is none, is too large, or has numbers that others cannot read."""
    if len(text) > MAX_DOCUMENT_BYTES:
        raise FormatError(f"longer than {MAX_DOCUMENT_BYTES} bytes")
    try:
        return decoder.decode(text.decode())
    except FormatError:
        raise
    except UnicodeDecodeError:
        raise FormatError("no UTF-8") from None
    except RecursionError:
        raise FormatError("nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"no JSON: {error}") from None


def read(path: Path) -> Any:
    """Raises OSError, FormatError."""
    with path.open("rb") as file:
        return parse(file.read(MAX_DOCUMENT_BYTES + 1))


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file's lines that are not empty, by number. A line that is too long is its first part, so that `parse`
    refuses it; the rest of it is passed over."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_DOCUMENT_BYTES + 1):
            number += 1
            rest = line
            while len(rest) > MAX_DOCUMENT_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MAX_DOCUMENT_BYTES + 1)
            if line.strip():
                yield number, line.rstrip(b"\n") if len(line) <= MAX_DOCUMENT_BYTES else line


def shown(value: Any) -> str:
    """A value as an error shows it: on one line, without control characters, and not all of it."""
    text = json.dumps(value, default=lambda other: type(other).__name__)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def schema(name: str) -> dict[str, Any]:
    """A schema of the benchmark: answer, truth or recording."""
    found: dict[str, Any] = json.loads((HERE / f"{name}.schema.json").read_text(encoding="utf-8"))
    return found


def checker(name: str, definition: str = "") -> Check:
    """What checks documents against a schema of the benchmark, or against one of its definitions."""
    root = schema(name)
    return compile_schema(root["$defs"][definition] if definition else root, root)


def compile_schema(node: dict[str, Any], root: dict[str, Any]) -> Check:
    checks = [KEYWORDS[key](node, root) for key in node if key in KEYWORDS]
    unknown = sorted(set(node) - set(KEYWORDS) - ANNOTATIONS - BESIDE)
    if "additionalProperties" in node and "properties" not in node:
        raise ValueError("additionalProperties without properties are not known here")
    if unknown:
        raise ValueError(f"keywords of JSON Schema that are not known here: {', '.join(unknown)}")
    if len(checks) == 1:
        return checks[0]

    def check(value: Any) -> None:
        for each in checks:
            each(value)

    return check


def _type(node: dict[str, Any], root: dict[str, Any]) -> Check:
    names = [node["type"]] if isinstance(node["type"], str) else node["type"]
    first, *rest = [TYPES[name] for name in names]

    def check(value: Any) -> None:
        if not first(value) and not any(test(value) for test in rest):
            raise FormatError(f"{shown(value)} is no {' or '.join(names)}")

    return check


def _enum(node: dict[str, Any], root: dict[str, Any]) -> Check:
    allowed = node["enum"]
    words = frozenset(allowed)  # of strings alone

    def check(value: Any) -> None:
        if not isinstance(value, str) or value not in words:
            raise FormatError(f"{shown(value)} is none of {', '.join(allowed)}")

    return check


def _const(node: dict[str, Any], root: dict[str, Any]) -> Check:
    only = node["const"]

    def check(value: Any) -> None:
        if value != only or isinstance(value, bool) != isinstance(only, bool):
            raise FormatError(f"{shown(value)} is not {shown(only)}")

    return check


def _required(node: dict[str, Any], root: dict[str, Any]) -> Check:
    needed = node["required"]

    def check(value: Any) -> None:
        if isinstance(value, dict):
            for name in needed:
                if name not in value:
                    raise FormatError(f'lacks "{name}"')

    return check


def _properties(node: dict[str, Any], root: dict[str, Any]) -> Check:
    parts = {name: compile_schema(part, root) for name, part in node["properties"].items()}
    others = _others(node, root, parts)

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            return
        name = ""
        try:
            for name, each in value.items():
                part = parts.get(name, others)
                if part is not None:
                    part(each)
        except FormatError as error:
            error.path.insert(0, name if re.fullmatch(r"\w{1,40}", name) else shown(name))
            raise

    return check


def _others(node: dict[str, Any], root: dict[str, Any], parts: dict[str, Check]) -> Check | None:
    """What checks the fields that have no schema of their own."""
    other = node.get("additionalProperties", True)
    if other is True:
        return None
    if other is not False:
        return compile_schema(other, root)

    def refuse(value: Any) -> None:
        raise FormatError(f"no such field; there are {', '.join(parts)}")

    return refuse


def _items(node: dict[str, Any], root: dict[str, Any]) -> Check:
    part = compile_schema(node["items"], root)

    def check(value: Any) -> None:
        if isinstance(value, list):
            for place, each in enumerate(value):
                try:
                    part(each)
                except FormatError as error:
                    error.path.insert(0, place)
                    raise

    return check


def _itself(value: float) -> float:
    return value


def _bound(key: str, kind: type | tuple[type, ...], size: Callable[[Any], float], lower: bool, words: str) -> Any:
    def compiled(node: dict[str, Any], root: dict[str, Any]) -> Check:
        bound = node[key]

        def check(value: Any) -> None:
            if not isinstance(value, kind) or isinstance(value, bool):
                return
            if size(value) < bound if lower else size(value) > bound:
                raise FormatError(words.format(shown(value), bound))

        return check

    return compiled


def _reference(node: dict[str, Any], root: dict[str, Any]) -> Check:
    name = node["$ref"].removeprefix("#/$defs/")
    return compile_schema(root["$defs"][name], root)


def _all_of(node: dict[str, Any], root: dict[str, Any]) -> Check:
    parts = [compile_schema(part, root) for part in node["allOf"]]

    def check(value: Any) -> None:
        for part in parts:
            part(value)

    return check


def _if(node: dict[str, Any], root: dict[str, Any]) -> Check:
    condition, then = compile_schema(node["if"], root), compile_schema(node.get("then", {}), root)
    otherwise = compile_schema(node.get("else", {}), root)

    def check(value: Any) -> None:
        try:
            condition(value)
        except FormatError:
            otherwise(value)
        else:
            then(value)

    return check


BESIDE: Final = frozenset(("additionalProperties", "then", "else"))
"""Keywords that another one reads."""
KEYWORDS: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], Check]]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "properties": _properties,
    "items": _items,
    "minItems": _bound("minItems", list, len, True, "{} has fewer than {} items"),
    "maxItems": _bound("maxItems", list, len, False, "{} has more than {} items"),
    "maxLength": _bound("maxLength", str, len, False, "{} is longer than {} characters"),
    "minimum": _bound("minimum", (int, float), _itself, True, "{} is less than {}"),
    "maximum": _bound("maximum", (int, float), _itself, False, "{} is more than {}"),
    "$ref": _reference,
    "allOf": _all_of,
    "if": _if,
}
