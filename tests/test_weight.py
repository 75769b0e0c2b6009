"""What laggard weighs: code lines by room, files, and what each command carries, each within its budget.

A change that needs more changes the number here, and its message says why. One that needs less takes it down.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest
from support.paths import REPOSITORY

ROOMS = {
    "agent": 4_680,
    "catalogue": 680,  # the reader of rules as data, from diagnose, and the maker of findings, from probes
    "cli, model and single files": 1_115,
    "collector": 12_794,  # who was accused stays so while a doubt is left
    "demo": 465,
    "diagnose": 9_979,  # listings, courses, runs under heads, a link beside its adapter; 9,500 is wanted
    "gate": 1_860,
    "kernel_rules": 232,  # 230 is wanted
    "kit": 2_480,
    "kubernetes": 1_185,
    "locate": 5_860,  # time in no phase by stacks, levels by likelihood, a median's error; 5,800 is wanted
    "nccl": 1_995,
    "probes": 11_780,  # the Xid that another one names as its cause; 11,800 is allowed
    "rankfile": 765,
    "recommend": 1_801,
    "recording": 3_050,
    "reports": 1_840,
    "rings": 3_425,
    "stack_answers": 490,
    "stacks": 915,
    "suspects": 680,
    "trainer_hooks": 7_462,  # waits() and mpi4py, whose waits no hook saw
    "tune": 2_330,
    "wire": 976,
}
"""The most code lines of each room: without docstrings, comments and blanks."""

FILES = 639
"""The most files of the product."""

CARRIED = {"healthcheck": 14_848, "recommend": 13_860, "agent": 19_231, "collector": 22_545, "run": 11_533}
"""The most code lines of all files that a command imports, also those that it imports late."""

OWN_PROCESSES = {"agent": ("laggard.agent.prober.known",)}
"""What a command starts as another process of laggard, and so carries without importing it."""

MIN_SHARE = 0.93
"""A budget that is further above what there is allows more than it should: it comes down."""

PACKAGE = REPOSITORY / "src" / "laggard"


@cache
def files() -> dict[str, Path]:
    """The product's files by module, those behind links as well."""
    found = {}
    for top in sorted(PACKAGE.iterdir()):
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top] if top.suffix == ".py" else []:
            parts = ("laggard", *path.relative_to(PACKAGE).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def code_lines(module: str) -> int:
    text = files()[module].read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    passed_over = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in passed_over:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documented)


def room_of(module: str) -> str:
    parts = module.split(".")
    is_folder = len(parts) > 1 and any((PACKAGE / parts[1]).glob("*.py"))  # one that is gone may have left __pycache__
    return parts[1] if is_folder else "cli, model and single files"


@cache
def imported_by(module: str) -> frozenset[str]:
    """The modules of laggard that one imports anywhere in its code, but for its types alone."""
    tree = ast.parse(files()[module].read_text())
    types = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for each in ast.walk(node)
    }
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in types:
            named |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            named |= {each.name for each in node.names}
    return frozenset(name for name in named if name in files())


def carried(*modules: str) -> set[str]:
    seen, left = set(modules), list(modules)
    while left:
        new = imported_by(left.pop()) - seen
        seen |= new
        left += new
    return seen


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_within_its_budget(room: str) -> None:
    assert set(map(room_of, files())) == ROOMS.keys(), "each room has a budget"
    lines = sum(code_lines(module) for module in files() if room_of(module) == room)
    assert lines <= ROOMS[room], f"{room} has {lines} code lines: remove as many, or say why it grew"
    assert lines >= MIN_SHARE * ROOMS[room], f"{room} has {lines} code lines: take its budget down"


def test_the_files_are_within_their_budget() -> None:
    assert MIN_SHARE * FILES <= len(files()) <= FILES


@pytest.mark.parametrize("command", CARRIED)
def test_a_command_carries_no_more_than_its_budget(command: str) -> None:
    (module,) = re.findall(rf'Command\(\s*"{command}",\s*"([\w.]+)"', (PACKAGE / "commands.py").read_text())
    lines = sum(map(code_lines, carried(module, *OWN_PROCESSES.get(command, ()))))
    assert MIN_SHARE * CARRIED[command] <= lines <= CARRIED[command], f"{command} carries {lines} code lines"
