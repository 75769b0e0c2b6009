"""Switches a rule of laggard.locate off in this process, and on again, without touching its source.

The rule's function keeps its identity and gets other code. So every name that is bound to it, in whatever module, does
without the rule; a second binding (`from x import rule`) cannot be forgotten.

Most rules that are asked about a job say what would stand there without them, and then nothing needs to be judged anew:
`watched` runs a verdict with all rules on and tells which say something else. That rests on locate's functions being
pure.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, GeneratorType
from typing import Any, Final, NamedTuple

import numpy as np

PACKAGE: Final = "laggard.locate"
_WATCH: Final = "__laggard_watch__"
_OWN: Final = "__laggard_own__"
_ANNOTATIONS: Final = annotations.compiler_flag
"""As in the modules themselves: annotations are not evaluated."""


class Rule(NamedTuple):
    """A rule that can be switched off. `where`: its function, as `slow.by_place:by_place`, under PACKAGE. `off`: the
    expression, in terms of the function's parameters and its module's names, that the function then returns. With
    `part`, an expression within the function, only that is replaced by `off`, wherever it stands there."""

    name: str
    where: str
    off: str
    part: str = ""


class Unresolved(Exception):
    """A rule's function, or the part of it, is not in the source any more; the text says which and what to do."""


class Watched(NamedTuple):
    """The names of the rules that were `asked`, and of those that `acted`: what they say is not what `off` is."""

    asked: set[str]
    acted: set[str]


def function_of(where: str) -> FunctionType:
    """The function, method or property that a rule names. Raises Unresolved."""
    module, _, path = where.partition(":")
    try:
        found: object = importlib.import_module(f"{PACKAGE}.{module}")
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError) as error:
        raise Unresolved(f"{where}: {error}; say in ablation/rules.jsonl which function decides this") from error
    found = getattr(found, "__func__", None) or getattr(found, "fget", None) or found
    if not isinstance(found, FunctionType) or found.__code__.co_freevars:
        raise Unresolved(f"{where} is no plain function, so that its code cannot be replaced")
    return found


@contextlib.contextmanager
def switched_off(rule: Rule) -> Iterator[None]:
    """The block runs without the rule. Raises Unresolved."""
    with _with_code({rule.where: code_without(rule)}):
        yield


@contextlib.contextmanager
def watched(rules: Iterable[Rule]) -> Iterator[Watched]:
    """The block runs with all rules on, and what they say is noted. Raises Unresolved."""
    by_function: dict[str, tuple[Rule, ...]] = {}
    for rule in rules:
        by_function[rule.where] = (*by_function.get(rule.where, ()), rule)
    found = Watched(set(), set())

    def watch(name: str, own: Callable[[], Any], off: Callable[[], Any]) -> Any:
        said = own()
        is_generator = isinstance(said, GeneratorType)
        said = list(said) if is_generator else said
        found.asked.add(name)
        if name not in found.acted and not _would_say(said, off, is_generator):
            found.acted.add(name)
        return iter(said) if is_generator else said

    own = {
        where: FunctionType(_code_of_parts(each) or function_of(where).__code__, function_of(where).__globals__)
        for where, each in by_function.items()
    }
    with _with_code({where: _code_watched(each) or own[where].__code__ for where, each in by_function.items()}):
        setattr(builtins, _WATCH, watch)
        setattr(builtins, _OWN, own)
        try:
            yield found
        finally:
            delattr(builtins, _WATCH)
            delattr(builtins, _OWN)


@contextlib.contextmanager
def _with_code(codes: Mapping[str, CodeType]) -> Iterator[None]:
    functions = {where: function_of(where) for where in codes}
    before = {where: function.__code__ for where, function in functions.items()}
    for where, function in functions.items():
        function.__code__ = codes[where]
    try:
        yield
    finally:
        for where, function in functions.items():
            function.__code__ = before[where]


@functools.cache
def code_without(rule: Rule) -> CodeType:
    """The code of the rule's function with the rule off. Raises Unresolved."""
    definition = _definition(rule.where)
    off = _expression(rule.off)
    if rule.part:
        _replace(definition, rule, lambda _: off)
    else:
        definition.body = [ast.Return(off)]
    _check_names(rule, definition, off)
    return _compiled(rule.where, definition)


@functools.cache
def _code_of_parts(rules: Sequence[Rule]) -> CodeType | None:
    """The code of the function of these rules with each part watched; None where none is a part of it."""
    definition, parts = _definition(rules[0].where), [rule for rule in rules if rule.part]
    for rule in parts:
        _replace(definition, rule, functools.partial(_watching, rule))
    return _compiled(rules[0].where, definition) if parts else None


@functools.cache
def _code_watched(rules: Sequence[Rule]) -> CodeType | None:
    """Code that calls the function of these rules, watched as a whole; None where no rule is all of it."""
    whole = [rule for rule in rules if not rule.part]
    definition = _definition(rules[0].where)
    for rule in whole:
        own = ast.Subscript(ast.Name(_OWN, ast.Load()), ast.Constant(rule.where), ast.Load())
        given = [ast.Name(each.arg, ast.Load()) for each in definition.args.args]
        named = [ast.keyword(each.arg, ast.Name(each.arg, ast.Load())) for each in definition.args.kwonlyargs]
        definition.body = [ast.Return(_watching(rule, ast.Call(own, given, named)))]
    return _compiled(rules[0].where, definition) if whole else None


def _watching(rule: Rule, own: ast.expr) -> ast.expr:
    said = ast.Constant(rule.name), _later(own), _later(_expression(rule.off))
    return ast.Call(ast.Name(_WATCH, ast.Load()), [*said], [])


def _definition(where: str) -> ast.FunctionDef:
    lines, first = inspect.getsourcelines(function_of(where))
    found = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(found, ast.FunctionDef)
    found.decorator_list = []
    ast.increment_lineno(found, first - 1)
    return found


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _later(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def _compiled(where: str, definition: ast.FunctionDef) -> CodeType:
    module = ast.fix_missing_locations(ast.Module([definition], []))
    file = function_of(where).__code__.co_filename
    compiled = compile(module, file, "exec", _ANNOTATIONS, dont_inherit=True)
    return next(each for each in compiled.co_consts if isinstance(each, CodeType))


def _replace(definition: ast.FunctionDef, rule: Rule, by: Callable[[ast.expr], ast.expr]) -> None:
    replaced = _Replaced(ast.unparse(_expression(rule.part)), by)
    replaced.generic_visit(definition)
    if not replaced.count:
        raise Unresolved(
            f"{rule.where} has no `{rule.part}` any more; look at {rule.name!r} in bench/ablation/rules.jsonl"
        )


class _Replaced(ast.NodeTransformer):
    """Replaces each expression whose text is `part`; `count` says how many."""

    def __init__(self, part: str, by: Callable[[ast.expr], ast.expr]) -> None:
        self._part, self._by, self.count = part, by, 0

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and ast.unparse(node) == self._part:
            self.count += 1
            return self._by(node)
        found: ast.AST = self.generic_visit(node)
        return found


def _check_names(rule: Rule, definition: ast.FunctionDef, off: ast.expr) -> None:
    """Raises Unresolved where the replacement uses a name that the function cannot see: it would fail in few cases."""
    bound = set[str]()
    for node in (*ast.walk(definition), *ast.walk(off)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name)
    used = {each.id for each in ast.walk(off) if isinstance(each, ast.Name)}
    unknown = used - bound - function_of(rule.where).__globals__.keys() - vars(builtins).keys()
    if unknown:
        raise Unresolved(f"{rule.name!r}: {rule.where} does not know {', '.join(sorted(unknown))}")


def _would_say(said: Any, off: Callable[[], Any], is_generator: bool) -> bool:
    """Whether the rule says what stands in its place when it is off; no where that cannot be told."""
    try:
        other = off()
        if isinstance(other, bool) and not isinstance(said, (bool, np.ndarray)):
            return bool(said) is other  # a condition
        return is_same(said, list(other) if is_generator else other)
    except Exception:
        return False


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, with arrays and nan in them; no where nothing tells."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        one, other = np.asarray(one), np.asarray(other)
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, (tuple, list)) and type(one) is type(other):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(each, other[key]) for key, each in one.items())
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return all(is_same(getattr(one, it.name), getattr(other, it.name)) for it in dataclasses.fields(one))
    return bool(one == other or (one != one and other != other))
