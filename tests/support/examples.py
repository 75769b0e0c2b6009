"""Documents made of their types alone: each field has a value; and what another version may say more or less."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

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


class Part(NamedTuple):
    """A place of a document at which a struct stands."""

    path: tuple[str | int, ...]
    kind: inspect.StructType


def parts(kind: type[msgspec.Struct], document: Any) -> Iterator[Part]:
    """Every struct of a document, the outermost first."""
    return _parts(inspect.type_info(kind), document, ())


def _parts(kind: inspect.Type, value: Any, path: tuple[str | int, ...]) -> Iterator[Part]:
    if isinstance(kind, inspect.Metadata):
        yield from _parts(kind.type, value, path)
    elif isinstance(kind, inspect.UnionType):
        chosen = [it for it in kind.types if not isinstance(it, inspect.NoneType)]
        if value is not None:
            yield from _parts(chosen[0], value, path)
    elif isinstance(kind, inspect.StructType):
        yield Part(path, kind)
        for number, field in enumerate(kind.fields):
            if kind.array_like and number < len(value):
                yield from _parts(field.type, value[number], (*path, number))
            elif not kind.array_like and field.encode_name in value:
                yield from _parts(field.type, value[field.encode_name], (*path, field.encode_name))
    elif isinstance(kind, inspect.DictType):
        for key, item in value.items():
            yield from _parts(kind.value_type, item, (*path, key))
    elif isinstance(kind, inspect.TupleType):
        for number, (each, item) in enumerate(zip(kind.item_types, value, strict=False)):
            yield from _parts(each, item, (*path, number))
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.CollectionType):
        for number, item in enumerate(value):
            yield from _parts(kind.item_type, item, (*path, number))


def at(document: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def with_more(kind: type[msgspec.Struct], document: Any) -> Any:
    """The document with more wherever there may be more: a field in each object that a struct reads, an
    item behind the others of each list that one reads."""
    found = copy.deepcopy(document)
    for part in list(parts(kind, document)):
        place = at(found, part.path)
        if part.kind.cls.__struct_config__.forbid_unknown_fields:
            continue
        if part.kind.array_like:
            place.append({UNKNOWN: [1, None]})
        else:
            place[UNKNOWN] = {"of": ["what", 1, None]}
    return found


def optional_fields(kind: type[msgspec.Struct], document: Any) -> Iterator[Optional]:
    """Each field that may be left out."""
    for part in parts(kind, document):
        for number, field in enumerate(part.kind.fields):
            if field.required:
                continue
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            key = number if part.kind.array_like else field.encode_name
            yield Optional((*part.path, key), msgspec.to_builtins(default))


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
