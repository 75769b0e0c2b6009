"""The questions that a daemon's routes take in the query of a URL. Each is a Struct: its types, bounds, defaults and
descriptions are what is checked, what a refusal says, and what docs/openapi has (scripts/openapi.py)."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Final, TypeVar, get_args
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta, Struct, structs

MAX_PARAMETERS: Final = 18
"""The parameters of one question: sixteen ranks, their job and its owner."""

Name = Annotated[str, Meta(max_length=300)]
"""The name of a job or a node. An agent reports 256 characters of one at most; a job's key begins with its owner."""

Schema = dict[str, Any]
Asked = TypeVar("Asked", bound=Struct)

# Without signs, spaces, underscores and foreign digits, which int() and float() take.
_WHOLE: Final = re.compile(r"[0-9]{1,16}")
_NUMBER: Final = re.compile(r"[0-9]{1,32}(\.[0-9]{0,32})?([eE][-+]?[0-9]{1,3})?")


class WrongQuestion(ValueError):
    """The text is one line: which parameter is wrong and what it has to be, with nothing of the question itself."""


def read_question(kind: type[Asked], query: str) -> Asked:
    """The question in `query`, a URL's part behind `?`. Parameters that it does not know count for nothing; of one that
    is repeated the last counts, but of a list. Raises WrongQuestion."""
    try:
        given = parse_qs(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise WrongQuestion(f"a question has up to {MAX_PARAMETERS} parameters") from None
    types = {field.name: field.type for field in structs.fields(kind)}
    asked = [each for each in parameters(kind) if each["name"] in given or "required" in each]
    return kind(**{each["name"]: _value(each, types[each["name"]], given.get(each["name"], [])) for each in asked})


@cache
def parameters(kind: type[Struct]) -> tuple[Schema, ...]:
    """Those that a question of this kind may have, as OpenAPI has them. A list's values stand in one, with commas
    between them, or in one each: `explode`, which their Meta has in `extra_json_schema`."""
    _, components = msgspec.json.schema_components([kind])
    return tuple(
        _parameter(field, components[kind.__name__]["properties"][field.name]) for field in structs.fields(kind)
    )


def _parameter(field: structs.FieldInfo, told: Schema) -> Schema:
    """`told`: the field as JSON Schema. One that may be None is left out, never null."""
    schema = {**told, **told.get("anyOf", [{}])[0]}
    schema.pop("anyOf", None)
    if "enum" in schema:  # which msgspec sorts
        schema = {**schema, "type": "string", "enum": list(get_args(get_args(field.type)[0]))}
    if schema.get("default") in (None, ()):
        schema.pop("default", None)
    parameter = {"name": field.name, "in": "query", "description": schema.pop("description"), "schema": schema}
    style = {"style": "form", "explode": schema.pop("explode")} if "explode" in schema else {}
    return parameter | ({"required": True} if field.required else {}) | style


def _value(parameter: Schema, kind: Any, texts: list[str]) -> Any:
    schema = parameter["schema"]
    read: Any = _read(texts[-1], schema) if texts else None
    if schema["type"] == "array":
        parts = texts if parameter["explode"] else [part for part in texts[-1].split(",") if part]
        read = [_read(part, schema["items"]) for part in parts]
    try:
        return msgspec.convert(read, kind)
    except msgspec.ValidationError:
        about = parameter["description"][:1].lower() + parameter["description"][1:].rstrip(".")
        raise WrongQuestion(f"{parameter['name']} has to be {_words(schema)}: {about}") from None


def _read(text: str, schema: Schema) -> str | int | float:
    """The number that `text` is, where one is asked for; the text itself where it is none, which no check lets pass."""
    if schema["type"] == "integer":
        return int(text) if _WHOLE.fullmatch(text) else text
    return float(text) if schema["type"] == "number" and _NUMBER.fullmatch(text) else text


def _words(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "array":
        return f"a list of up to {schema['maxItems']}, each {_words(schema['items'])}"
    if schema["type"] == "string":
        return f"a text of up to {schema['maxLength']} characters"
    noun = "a whole number" if schema["type"] == "integer" else "a number"
    above = schema.get("exclusiveMinimum")
    least = f"from {schema['minimum']} to" if above is None else f"above {above}, up to"
    return f"{noun} {least} {schema['maximum']:.16g}"
