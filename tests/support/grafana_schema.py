"""Grafana's own schema of dashboards, as the models of grafana-foundation-sdk have it: what is wrong with a dashboard.

The models' from_json() keeps whatever it is given, so that two things are looked at: a key that no model has is lost on
the way to JSON and back, and each value is compared with the type that its model declares.
"""

import enum
import inspect
import json
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

NOT_IN_THE_SCHEMA: Final = ("__elements", "__inputs", "__requires", "definition", "step", "titleFormat")
"""Keys that Grafana reads and writes, and that the schema leaves out: of an export what its import asks for, of a
variable its query as the editor shows it, of an annotation its text and resolution."""


def problems_of(dashboard: dict[str, Any]) -> list[str]:
    """Each as the path of the value, and what is wrong; none where Grafana's schema has it all."""
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    try:
        model = Dashboard.from_json(dashboard)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return [f"it cannot be read: {error!r}"]
    return [*_lost(dashboard, _as_json(model), ""), *_mistyped(model, type(model), "")]


def _as_json(model: Any) -> Any:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    return json.loads(JSONEncoder().encode(model))


def _lost(given: Any, back: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(back, dict):
        for key, value in given.items():
            if key in back:
                yield from _lost(value, back[key], f"{path}.{key}")
            elif key not in NOT_IN_THE_SCHEMA:
                yield f"{path}.{key}: the schema has no such key"
    elif isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        for place, (one, other) in enumerate(zip(given, back, strict=True)):
            yield from _lost(one, other, f"{path}[{place}]")
    elif given != back:
        yield f"{path}: {given!r} is read as {back!r}"


def _mistyped(value: Any, hint: Any, path: str) -> Iterator[str]:
    """What in `value` is not of the type `hint`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        yield from _of_no_alternative(value, inner, path)
    elif origin is list and isinstance(value, list):
        for place, each in enumerate(value):
            yield from _mistyped(each, inner[0], f"{path}[{place}]")
    elif origin is dict and isinstance(value, dict):
        for key, each in value.items():
            yield from _mistyped(each, inner[1], f"{path}.{key}")
    elif origin is typing.Literal:
        if value not in inner:
            yield f"{path}: {value!r} is none of {inner}"
    elif inspect.isclass(hint) and issubclass(hint, enum.Enum):
        if value not in [each.value for each in hint] and value not in list(hint):
            yield f"{path}: {value!r} is none of {[each.value for each in hint]}"
    elif inspect.isclass(hint) and hasattr(hint, "from_json") and isinstance(value, dict):
        model = hint.from_json(value)  # Panel.from_json() leaves its transformations as they are
        yield from (*_lost(value, _as_json(model), path), *_mistyped_fields(model, path))
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return
    elif hint is int and isinstance(value, bool):
        yield f"{path}: {value!r} is no number"
    elif hint is not Any and not isinstance(value, origin or hint):
        yield f"{path}: {value!r} is no {getattr(hint, '__name__', hint)}"
    elif _is_model(value):
        yield from _mistyped_fields(value, path)


def _of_no_alternative(value: Any, hints: tuple[Any, ...], path: str) -> Iterator[str]:
    """What is wrong by the alternative that is nearest: of the same class, then with the fewest problems."""
    if value is not None:
        hints = tuple(hint for hint in hints if hint is not type(None))
    same = tuple(hint for hint in hints if (typing.get_origin(hint) or hint) is type(value))
    yield from min((list(_mistyped(value, hint, path)) for hint in same or hints), key=len)


def _mistyped_fields(model: Any, path: str) -> Iterator[str]:
    hints = typing.get_type_hints(type(model))
    for name, hint in hints.items():
        yield from _mistyped(getattr(model, name), hint, f"{path}.{name}")


def _is_model(value: object) -> bool:
    return type(value).__module__.startswith("grafana_foundation_sdk.models")
