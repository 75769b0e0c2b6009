"""Prints the test files that a change can break, one a line: those that import, also by way of other files, a module
that differs from the commit BASE, uncommitted and new files included.

    changed_tests.py [BASE]      BASE: HEAD, if none is given
    changed_tests.py --branch    BASE is where the branch left origin/main, or else the commit before the last

What a test uses without an import counts too: a command of laggard that it starts, a fixture that it asks for, a file
or folder that it names, and all of that in its folder's conftest.py. Where a file changed that stands behind every test
(conftest.py, pyproject.toml, this script), the answer is `tests`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp

from laggard.commands import COMMANDS, PARTS

REPOSITORY = Path(__file__).resolve().parents[1]
BEHIND_ALL = ("tests/conftest.py", "pyproject.toml", "Makefile", "scripts/setup", "scripts/changed_tests.py")
MODULE_OF_COMMAND = {command.name.split()[-1]: command.module for command in (*COMMANDS, *PARTS)}


def changed_files(base: str) -> set[str]:
    """Paths from the repository's root: what differs from `base`, and new files that git does not ignore."""
    lists = (["diff", "--name-only", base], ["ls-files", "--others", "--exclude-standard"])
    outputs = [subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True) for words in lists]
    for output in outputs:
        if output.returncode:
            raise SystemExit(f"changed_tests: {output.stderr.strip()}")
    return {line for output in outputs for line in output.stdout.splitlines()}


_FOLDERS = ("agent", "collector", "probes", "trainer_hooks")


def module_of(path: str) -> str:
    """laggard.probes.gpu.ecc of probes/gpu/ecc.py; support.vm of tests/support/vm.py; empty: it is no module."""
    if not path.endswith(".py"):
        return ""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    if parts[:2] == ["src", "laggard"]:
        return ".".join(parts[1:])
    if parts[:2] == ["tests", "support"]:
        return ".".join(parts[1:])
    return ".".join(["laggard", *parts]) if parts[0] in _FOLDERS else ""


def names_in(path: Path) -> Iterator[str]:
    """Every module that the file imports, and what its strings name: a module, a file, a folder, a command."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield MODULE_OF_COMMAND.get(node.value, node.value)
            yield from (word for word in node.value.replace(";", " ").split() if word.startswith("laggard."))
        elif isinstance(node, ast.arg):
            yield f"fixture {node.arg}"


def fixtures_in(path: Path) -> Iterator[str]:
    """The fixtures that the file defines, as `names_in` has them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(it) for it in node.decorator_list):
            yield f"fixture {node.name}"


def affected_modules(changed: Iterable[str]) -> set[str]:
    """The changed modules and all that import them."""
    imports = grimp.build_graph("laggard", cache_dir=None)
    modules = {module_of(path) for path in changed} & imports.modules
    return modules.union(*(imports.find_downstream_modules(module) for module in modules))


def affected_tests(changed: set[str]) -> list[str]:
    if changed & set(BEHIND_ALL):
        return ["tests"]
    affected = affected_modules(changed)
    for path in (Path(path) for path in changed if not path.endswith(".py")):
        affected |= {path.name, str(path.parent), path.parent.name, *path.parent.parts[2:3]} - {"", "."}
    tests = REPOSITORY / "tests"
    names = {path: set(names_in(path)) for path in tests.rglob("*.py")}
    names[tests / "support" / "paths.py"] = set()  # it names every folder, and all tests import it
    support = {path: module_of(str(path.relative_to(REPOSITORY))) for path in (tests / "support").rglob("*.py")}
    affected |= {name for path, name in support.items() if str(path.relative_to(REPOSITORY)) in changed}
    while new := {path for path, name in support.items() if name in affected or names[path] & affected}:
        affected |= {support.pop(path) for path in new}.union(*(fixtures_in(path) for path in new))
    found = [
        str(path.relative_to(REPOSITORY))
        for path, used in names.items()
        if used & affected or names.get(path.parent / "conftest.py", set()) & affected
    ]
    found += [path for path in changed if path.startswith("tests/") and (REPOSITORY / path).is_file()]
    return sorted({path for path in found if Path(path).name.startswith("test_")})


def base_of_branch() -> str:
    """The commit with which a change begins; empty: the history does not say."""
    head = _git("rev-parse", "HEAD")
    fork = _git("merge-base", "HEAD", "origin/main")
    return fork if fork != head and fork else _git("rev-parse", "--verify", "--quiet", "HEAD~1")


def _git(*words: str) -> str:
    """The first line of what it prints; empty where it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def main(words: list[str]) -> int:
    if len(words) > 1 or words and words[0].startswith("-") and words[0] != "--branch":
        print(f"changed_tests: [BASE] or --branch is wanted, not {' '.join(words)}", file=sys.stderr)
        return 64
    base = base_of_branch() if words == ["--branch"] else words[0] if words else "HEAD"
    if base:
        print("\n".join(affected_tests(changed_files(base))))
    else:
        print("changed_tests: no history tells what changed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
