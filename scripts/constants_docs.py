"""Writes docs/development/constants.md from the constants of laggard.locate that decide: their values, and the first
sentence of what stands beside them.

.venv/bin/python scripts/constants_docs.py > docs/development/constants.md
"""

from __future__ import annotations

import ast
import importlib
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

LOCATE = Path(__file__).resolve().parents[1] / "src" / "laggard" / "locate"
NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
SENTENCE = re.compile(r".+?\.(?=\s|$)", re.DOTALL)
PARTS = (
    ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.Dict, ast.Call, ast.keyword, ast.operator,
    ast.unaryop, ast.expr_context,
)  # fmt: skip
"""What the value of a constant is written with; of calls, those of classes."""

NO_DECISION = re.compile(
    r"BLOCK.*|.*CONFIDENCE|EIGHTHS|MAX_TOLD_RATIO|MIDDLE_RANKS|NEGLIGIBLE_SHARE|NO_PHASES_FACTOR|ONE_PEER_FACTOR|"
    r"ONE_RANK_MIN_SHARE|RECORDED_ROWS|ROUNDING_TOLERANCE|_MIN_AFTER_SECONDS|_NODES|_TRIFLE_SECONDS|_WORLD|ANY_RANK"
)
"""Bounds of work, how sure a verdict says that it is, and numbers of words, codes and arithmetic. Whole numbers called
MAX_.. are bounds of memory, work and text, too, but for MAX_DECIDES."""

MAX_DECIDES = frozenset(("MAX_CULPRITS", "MAX_DEVICES", "MAX_LINKS", "MAX_RANKS", "MAX_ROUNDS"))

HEAD = (Path(__file__).parent / "heads" / "constants.md").read_text(encoding="utf-8")


class Constant(NamedTuple):
    name: str
    value: Any
    about: str


def constants(path: Path) -> Iterator[Constant]:
    """The constants of a file that decide, in their order."""
    module = importlib.import_module(".".join(("laggard.locate", *path.relative_to(LOCATE).with_suffix("").parts)))
    comments = _comments(path)
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, after in pairwise((*body, ast.Pass())):
        for name in _names(node):
            value = getattr(module, name)
            if _is_of_numbers(value) and _decides(name, value):
                told = " ".join((_docstring(after) or comments.get(node.lineno, "")).split())
                found = SENTENCE.match(told)
                yield Constant(name, value, found[0] if found else told)


def _names(node: ast.stmt) -> Iterator[str]:
    """The names in capitals that the statement gives to numbers that it writes."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = getattr(node, "value", None)
    if targets and value and _is_written(value):
        names = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        yield from (each.id for each in names if isinstance(each, ast.Name) and NAME.fullmatch(each.id))


def _is_written(value: ast.expr) -> bool:
    parts = list(ast.walk(value))
    calls = [each.func for each in parts if isinstance(each, ast.Call)]
    are_classes = all(isinstance(it, ast.Name) and it.id.lstrip("_")[:1].isupper() for it in calls)
    are_numbers = all(isinstance(each, PARTS) for each in parts)
    return are_classes and are_numbers and any(isinstance(each, ast.Constant) for each in parts)


def _is_of_numbers(value: Any) -> bool:
    if isinstance(value, (tuple, dict)):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return bool(parts) and all(map(_is_of_numbers, parts))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _decides(name: str, value: Any) -> bool:
    is_bound = name.lstrip("_").startswith("MAX_") and isinstance(value, int) and name not in MAX_DECIDES
    return not is_bound and not NO_DECISION.fullmatch(name)


def _docstring(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return node.value.value if is_text else ""  # type: ignore[union-attr, return-value]


def _comments(path: Path) -> dict[int, str]:
    """The comment at the end of each line that has one."""
    with tokenize.open(path) as file:
        found = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
    return {token.start[0]: token.string.lstrip("# ") for token in found if not token.string.startswith("# fmt")}


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def page() -> str:
    parts = [HEAD]
    for path in sorted(LOCATE.rglob("*.py")):
        rows = [f"| `{it.name}` | {_plain(it.value)} | {it.about.replace('|', '/')} |" for it in constants(path)]
        if rows:
            title = f"\n## {path.relative_to(LOCATE)}\n\n| constant | value | meaning |\n|---|---|---|"
            parts.append("\n".join((title, *rows, "")))
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
