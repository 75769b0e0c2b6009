"""The deciding constants of laggard.locate, and how one is moved in this process and put back.

They are found in the source: numbers, and numbers in tuples, that a module of the verdict gives a name in capitals. A
constant that another module imports has a second name there, and one that stands as a parameter's default was read when
the function was made: all of these move together. A constant computed from another (`SLOW_RATIO / 2`) is one of its
own.
"""

import ast
import contextlib
import functools
import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from ablation.switch import PACKAGE

JUDGE: Final = "laggard.recording.judged"
"""The module that asks for verdicts, on timings, stacks and arrivals."""
_NAME: Final = re.compile(r"_?[A-Z][A-Z0-9_]*")

NO_THRESHOLDS: Final[Mapping[str, str]] = {
    "hang.wait_graph:ANY_RANK": "a code",
    "job_timings:FIRST_STEPS": "decides when a recording is read",
    "job_timings:RECORDED_ROWS": "memory",
    "job_timings:RECORDED_STEPS": "decides when a recording is read",
    "job_timings:WINDOW_SECONDS": "decides when a recording is read",
    "job_timings:WINDOW_STEPS": "decides when a recording is read",
    "links.places:ROUNDING_TOLERANCE": "rounding",
    "links.network:MAX_TOLD_RATIO": "words",
    "links.raised:HELD_UP_RATIO": "a part of BY_FASTEST, whose numbers are moved",
    "links.channels:PAIR_RATIO": "a part of BY_EQUALS and BY_BLOCKED, whose numbers are moved",
    "explanation:_NODES": "words",
    "slow.culprits:NO_PHASES_FACTOR": "the confidence that is told",
    "slow.culprits:ONE_PEER_FACTOR": "the confidence that is told",
    "medians:MAD_TO_SIGMA": "a fact of the normal distribution",
    "slow.steps:BLOCK_VALUES": "work at once",
    "job_timings:BLOCK_RANKS": "work at once",
}
"""Constants that no verdict on timings hangs on, with the reason. So it is with names that end in CONFIDENCE, and with
whole numbers called MAX_.., bounds of memory, work and text, but for MAX_DECIDES."""

MAX_DECIDES: Final = frozenset(("MAX_PLACES", "MAX_ROUNDS"))
"""Whole numbers called MAX_.. that decide who is named."""


class Threshold(NamedTuple):
    """A number of a module of locate: `slow.tested:LIVE_ERRORS`; `path` leads to it within nested tuples."""

    module: str
    name: str
    path: tuple[int, ...] = ()

    def __str__(self) -> str:
        places = "".join(f"[{place}]" for place in self.path)
        return f"{self.module.removeprefix(f'{PACKAGE}.')}:{self.name}{places}"


class Binding(NamedTuple):
    """One of a constant's names. `defaults`: the functions of the module that have it as a parameter's default."""

    module: str
    name: str
    defaults: tuple[tuple[FunctionType, str], ...]


@functools.cache
def verdict_modules() -> tuple[str, ...]:
    """The modules of PACKAGE that a verdict imports, at its top or where it asks."""
    found, left = set[str](), [JUDGE]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(_tree(name)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{PACKAGE}."):
                left.append(node.module)
    return tuple(sorted(found - {JUDGE}))


@functools.cache
def _tree(module: str) -> ast.Module:
    file = importlib.import_module(module).__file__
    assert file is not None
    return ast.parse(Path(file).read_text(encoding="utf-8"))


@functools.cache
def thresholds() -> tuple[Threshold, ...]:
    """All that may be moved, in the order of modules and lines."""
    found = []
    for module in verdict_modules():
        for name in _named_numbers(_tree(module)):
            if is_threshold(module, name, value := getattr(sys.modules[module], name)):
                found += [Threshold(module, name, path) for path, _ in _numbers(value)]
    return tuple(found)


def is_threshold(module: str, name: str, value: object) -> bool:
    bare = name.lstrip("_")
    if str(Threshold(module, name)) in NO_THRESHOLDS or bare.endswith("CONFIDENCE"):
        return False
    return not (bare.startswith("MAX_") and isinstance(value, int) and bare not in MAX_DECIDES)


def _named_numbers(tree: ast.Module) -> Iterator[str]:
    """The names in capitals that the module gives to numbers it writes itself, or computes from such."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            names, values = ([target], [node.value])
            if isinstance(target, ast.Tuple):
                names = target.elts
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(names)
            for each, value in zip(names, values, strict=True):
                if isinstance(each, ast.Name) and _NAME.fullmatch(each.id) and _is_of_numbers(value):
                    yield each.id


def _is_of_numbers(value: ast.expr | None) -> bool:
    match value:
        case ast.Constant(value=number):
            return isinstance(number, (int, float)) and not isinstance(number, bool)
        case ast.UnaryOp(operand=operand):
            return _is_of_numbers(operand)
        case ast.BinOp(left=left, right=right):  # SLOW_RATIO / 2
            return all(isinstance(each, ast.Name) or _is_of_numbers(each) for each in (left, right))
        case ast.Tuple(elts=parts):
            return bool(parts) and all(map(_is_of_numbers, parts))
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=named):  # a value class: Level(0.04, 4.0)
            is_class = name.lstrip("_")[:1].isupper()
            values = (*parts, *(each.value for each in named))
            return is_class and all(_is_named(each) or _is_of_numbers(each) for each in values)
    return False


def _is_named(value: ast.expr) -> bool:
    """Whether a value class is given another name, or yes or no."""
    return (
        isinstance(value, (ast.Name, ast.Attribute))
        or isinstance(value, ast.Constant)
        and isinstance(value.value, bool)
    )


def _numbers(value: object, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], float]]:
    """The numbers in nested tuples, each with the way to it."""
    if isinstance(value, tuple):
        for place, each in enumerate(value):
            yield from _numbers(each, (*path, place))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def value_of(threshold: Threshold) -> float:
    return dict(_numbers(getattr(sys.modules[threshold.module], threshold.name)))[threshold.path]


def moved_value(value: float, factor: float) -> float:
    """`value` times `factor`. A whole number changes by one at least. Of a ratio between 1 and 2 what is above 1 is
    moved: half of 1.05 is no ratio. A share above a half goes up to half of the way to 1: twice 0.9 is no share."""
    if isinstance(value, int):
        found = round(value * factor)
        return found if found != value else value + (1 if factor > 1 else -1)
    if 1.0 < value < 2.0:
        return 1.0 + (value - 1.0) * factor
    if factor > 1 and 0.5 < value < 1.0:
        return 1.0 - (1.0 - value) / factor
    return value * factor


@contextlib.contextmanager
def moved(values: Mapping[Threshold, float]) -> Iterator[None]:
    """The block runs with these thresholds at other values."""
    before: list[tuple[Binding, Any]] = []
    by_name: dict[tuple[str, str], dict[tuple[int, ...], float]] = {}
    for threshold, value in values.items():
        by_name.setdefault(threshold[:2], {})[threshold.path] = value
    try:
        for (module, name), parts in by_name.items():
            own = getattr(sys.modules[module], name)
            other = _with_numbers(own, parts)
            for binding in bindings(module, name):
                before.append((binding, own))
                _bind(binding, other)
        yield
    finally:
        for binding, own in reversed(before):
            _bind(binding, own)


def _with_numbers(value: Any, parts: Mapping[tuple[int, ...], float], path: tuple[int, ...] = ()) -> Any:
    if not isinstance(value, tuple):
        return parts.get(path, value)
    changed = [_with_numbers(each, parts, (*path, place)) for place, each in enumerate(value)]
    return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)


def _bind(binding: Binding, value: Any) -> None:
    setattr(sys.modules[binding.module], binding.name, value)
    for function, parameter in binding.defaults:
        _set_default(function, parameter, value)


def _set_default(function: FunctionType, parameter: str, value: Any) -> None:
    if function.__kwdefaults__ and parameter in function.__kwdefaults__:
        function.__kwdefaults__[parameter] = value
        return
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = list(function.__defaults__ or ())
    defaults[names.index(parameter) - len(names)] = value
    function.__defaults__ = tuple(defaults)


@functools.cache
def bindings(module: str, name: str) -> tuple[Binding, ...]:
    """All names of a constant: its own, and those of the modules that import it."""
    own = [(module, name), *((other, each) for other, each, constant in _imported(module) if constant == name)]
    return tuple(Binding(*each, tuple(_defaults(*each))) for each in own)


@functools.cache
def _imported(module: str) -> tuple[tuple[str, str, str], ...]:
    """Who imports from a module at its top: the other module, the name that it gives, and the name here."""
    return tuple(
        (other, each.asname or each.name, each.name)
        for other in verdict_modules()
        for node in _tree(other).body
        if isinstance(node, ast.ImportFrom) and node.module == module
        for each in node.names
    )


def _defaults(module: str, name: str) -> Iterator[tuple[FunctionType, str]]:
    for function, definition in _functions(module):
        arguments = definition.args
        positional = [*arguments.posonlyargs, *arguments.args]
        told = [*zip(positional[::-1], arguments.defaults[::-1], strict=False),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]  # fmt: skip
        yield from (
            (function, each.arg) for each, default in told if isinstance(default, ast.Name) and default.id == name
        )


@functools.cache
def _functions(module: str) -> tuple[tuple[FunctionType, ast.FunctionDef], ...]:
    """The functions and methods of a module, each with its definition."""
    return tuple(_functions_in(sys.modules[module], _tree(module).body))


def _functions_in(owner: ModuleType | type, body: Sequence[ast.stmt]) -> Iterator[tuple[FunctionType, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions_in(getattr(owner, node.name), node.body)
        elif isinstance(node, ast.FunctionDef):
            found = vars(owner)[node.name]
            found = (
                getattr(found, "__func__", None)
                or getattr(found, "fget", None)
                or getattr(found, "func", None)
                or found
            )
            found = getattr(found, "__wrapped__", found)
            if isinstance(found, FunctionType):
                yield found, node


@functools.cache
def readers(module: str, name: str) -> frozenset[tuple[str, int]]:
    """The functions that read a constant, each as its file and first line. Those that a value computed from it
    decides are not among them: that value is a threshold of its own."""
    return frozenset(
        place
        for binding in bindings(module, name)
        for place, names in _names_read(binding.module)
        if binding.name in names
    )


@functools.cache
def _names_read(module: str) -> tuple[tuple[tuple[str, int], frozenset[str]], ...]:
    """The functions of a module, with all names that stand in each."""
    return tuple(
        (place_of(function), frozenset(each.id for each in ast.walk(definition) if isinstance(each, ast.Name)))
        for function, definition in _functions(module)
    )


def place_of(function: FunctionType) -> tuple[str, int]:
    return function.__code__.co_filename, function.__code__.co_firstlineno
