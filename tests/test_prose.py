"""The prose: bounds have names of the field, and a docstring's first sentence begins with its subject or its verb."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from support.paths import REPOSITORY

PRODUCT = ("src/laggard",)
"""The folder of the product's code; agent, collector, probes, trainer_hooks and deploy are linked from it."""
EVERYTHING = (*PRODUCT, "bench", "scripts", "tests")
VAGUE_WORDS = frozenset(("MOST", "FEWEST", "ENOUGH", "LEAST"))
DEPENDENT = re.compile(
    r"\s*(?:"
    r"about|above|across|after|against|along|although|among|around|as|at|before|behind|below|beneath|beside|"
    r"besides|between|beyond|by|during|for|from|how|if|in|into|near|of|off|on|onto|out|over|per|since|so|than|"
    r"that|though|till|to|toward|towards|under|unless|until|up|upon|what|when|whenever|where|whereas|wherever|"
    r"whether|which|while|who|whom|whose|why|with|within|without"
    r")\b",
    re.IGNORECASE,
)
MAX_SHARE = 0.03
"""The largest share of docstrings that may begin with a dependent word, where another order would be stilted."""
PROGRAMS = re.compile(r"chronyd|importlib|laggard|libfabric|msgspec|scontrol|srun|statvfs|torch|torchrun|uvicorn")


class Docstring(NamedTuple):
    """A docstring, or the string after a constant or a field. `is_predicate`: that of a function that returns bool."""

    line: int
    text: str
    is_constant: bool
    is_predicate: bool


def files(folders: Sequence[str]) -> Iterator[Path]:
    for folder in folders:
        for place, names, found in os.walk(REPOSITORY / folder, followlinks=True):
            names[:] = sorted(name for name in names if name != "__pycache__")
            yield from (Path(place, name) for name in sorted(found) if name.endswith(".py"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def constants(statements: Sequence[ast.stmt]) -> Iterator[tuple[int, str]]:
    """The line and the name of each constant of a module and its classes, also below an `if` or a `try`."""
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        named = (node for target in targets if target is not None for node in ast.walk(target))
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from ((node.lineno, node.id) for node in named if isinstance(node, ast.Name) and node.id.isupper())
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from constants([each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.stmt)])


def vague_constants(module: ast.Module) -> list[tuple[int, str]]:
    return [(line, name) for line, name in constants(module.body) if VAGUE_WORDS & set(name.split("_"))]


def docstrings(module: ast.Module) -> Iterator[Docstring]:
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            is_predicate = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _returns_bool(node)
            yield Docstring(node.body[0].lineno, text, False, is_predicate)
        body = getattr(node, "body", None)
        for statement, after in zip(body, body[1:], strict=False) if isinstance(body, list) else ():
            if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                value = after.value.value if isinstance(after.value, ast.Constant) else None
                if isinstance(value, str):
                    yield Docstring(after.lineno, value, True, False)


def _returns_bool(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.returns is not None and ast.unparse(node.returns).startswith(("bool", "TypeGuard", "TypeIs"))


def is_dependent(docstring: Docstring) -> bool:
    """Whether it begins with a dependent word; `Whether` is ordinary where the function returns bool."""
    found = DEPENDENT.match(docstring.text)
    return found is not None and not (docstring.is_predicate and found[0].strip().lower() == "whether")


def is_lower(docstring: Docstring) -> bool:
    """Whether it begins in lower case with a word that is no name: of a program, or with a mark such as `_` or `(`."""
    first = docstring.text.split()[0]
    name = re.split(r"'s\b|[,:.]", first)[0]
    return name.isalpha() and name.islower() and not PROGRAMS.fullmatch(name)


def place(path: Path, docstring: Docstring) -> str:
    return f"{path.resolve().relative_to(REPOSITORY)}:{docstring.line}: {' '.join(docstring.text.split())[:60]}"


def told(docstrings_by_file: Sequence[tuple[Path, Docstring]]) -> str:
    return "\n".join(place(path, docstring) for path, docstring in docstrings_by_file)


@functools.cache
def product_docstrings() -> list[tuple[Path, Docstring]]:
    return [(path, docstring) for path in files(PRODUCT) for docstring in docstrings(tree(path))]


def test_no_constant_is_named_by_a_piece_of_a_sentence() -> None:
    found = [
        f"{path.resolve().relative_to(REPOSITORY)}:{line}: {name}"
        for path in files(EVERYTHING)
        for line, name in vague_constants(tree(path))
    ]
    assert not found, "name these MAX_..., MIN_... or by their quantity (JOIN_SECONDS):\n" + "\n".join(found)


def test_docstrings_begin_with_their_subject() -> None:
    every = product_docstrings()
    found = [(path, docstring) for path, docstring in every if is_dependent(docstring)]
    assert len(every) > 4000
    assert len(found) <= MAX_SHARE * len(every), f"put subject and verb first in these docstrings:\n{told(found)}"


def test_docstrings_of_constants_and_fields_name_the_thing() -> None:
    every = [(path, docstring) for path, docstring in product_docstrings() if docstring.is_constant]
    found = [(path, docstring) for path, docstring in every if is_dependent(docstring)]
    assert len(every) > 900
    assert len(found) <= MAX_SHARE * len(every), f"begin these with a noun ('The longest time ...'):\n{told(found)}"


def test_docstrings_begin_in_upper_case() -> None:
    found = [(path, docstring) for path, docstring in product_docstrings() if is_lower(docstring)]
    assert not found, f"begin these in upper case, or add the program's name to the list here:\n{told(found)}"


def test_what_is_looked_for_would_be_found() -> None:
    module = ast.parse(
        '"""what this is."""\n'
        "_MOST_NAMES, LAST = 1, 2\n"
        "if LAST:\n    AT_LEAST: int = 3\n"
        "class Limits:\n    FEWEST = 4\n    ALMOST = 5\n    wide: bool\n"
        '    """Whether it is wide."""\n'
        "def is_wide() -> bool:\n"
        '    """Whether it is wide."""\n'
        "    ENOUGH = 6\n"
        "def width() -> int:\n"
        '    """How wide it is."""\n'
        "def depth() -> int:\n"
        '    """torch\'s depth of the whole."""\n'
    )
    found = list(docstrings(module))
    assert {name for _, name in vague_constants(module)} == {"_MOST_NAMES", "AT_LEAST", "FEWEST"}
    assert sorted(each.line for each in found if is_dependent(each)) == [1, 9, 14]
    assert [each.line for each in found if each.is_constant] == [9]
    assert [each.line for each in found if is_lower(each)] == [1]
