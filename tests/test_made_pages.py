"""Pages: those that scripts make, the site of all, docs/operate.md, and docs/openapi by the answers' types."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.docs_commands import command_lines
from support.fuzz import OPENAPI
from support.made_pages import expect_current, script
from support.paths import REPOSITORY, TESTS

from laggard.catalogue.metrics import METRICS

PACKAGE = REPOSITORY / "src" / "laggard"
SCHEMA = re.compile(r"\"(laggard\.[a-z_]+/\d+)\"")


def test_the_page_of_all_metrics_is_current_and_says_who_serves_each() -> None:
    written = expect_current("metrics_docs", "metrics.md")
    assert not script("metrics_docs").left_out(), "metrics that no exporter of scripts/metrics_docs.py serves"
    missing = [metric.name for metric in METRICS if f"| `{metric.name}` | {metric.kind} |" not in written]
    assert not missing, missing


def test_the_page_of_all_commands_is_current() -> None:
    assert "## laggard locate\n" in expect_current("commands_docs", "commands.md")


def test_the_page_of_all_formats_is_current_and_has_every_document() -> None:
    written = expect_current("format_docs", "formats.md")
    sources = [path for path in PACKAGE.rglob("*.py") if path.is_file()]
    for folder in ("agent", "collector", "probes", "trainer_hooks"):
        sources += (REPOSITORY / folder).rglob("*.py")
    named = {schema for path in sources for schema in SCHEMA.findall(path.read_text(encoding="utf-8"))}
    missing = sorted(schema for schema in named if f"`{schema}`" not in written)
    assert len(named) > 20 and not missing, f"scripts/format_docs.py has no {', '.join(missing)}"


def test_the_contracts_have_every_kind_of_note_and_no_other() -> None:
    text = (REPOSITORY / "docs" / "development" / "contracts.md").read_text(encoding="utf-8")
    table = text.partition("**Notes** say")[2].partition("\n## ")[0]
    told = {kind for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for kind in re.findall(r"`(\w+)`", row)}
    rooms = (REPOSITORY / "collector", PACKAGE / "locate", PACKAGE / "recording")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for room in rooms for path in room.rglob("*.py")]
    made = {kind for tree in trees for kind in _kinds_of_notes(tree)}
    assert len(made) > 40 and not made - told, f"docs/development/contracts.md has no {sorted(made - told)}"
    words = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not told - words, f"no code makes {sorted(told - words)}"


def _kinds_of_notes(tree: ast.AST) -> Iterator[str]:
    """The kinds that stand in the calls that make a note, as they are written."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Note", "unknown_location"):
            kind = call.args[0] if call.args else next(each.value for each in call.keywords if each.arg == "kind")
            if isinstance(kind, ast.Constant):
                yield str(kind.value)


def test_units_follow_from_names() -> None:
    unit = script("format_docs").unit
    assert [unit(name) for name in ("seconds", "size_bytes", "busbw_bytes_per_second", "opened_at", "rank")] == [
        "s", "bytes", "bytes/s", "s, Unix time", ""]  # fmt: skip


OF_OTHERS = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
PAGES = [*REPOSITORY.glob("*.md"), *sorted((REPOSITORY / "docs").rglob("*.md")), *(REPOSITORY / "deploy").rglob("*.md")]
CODE = re.compile(r"^ *```.*?^ *```|^    .*?$|`[^`]*`", re.MULTILINE | re.DOTALL)
MACHINE = re.compile(r"https?://(?:127\.0\.0\.1|localhost|[\w-]+:\w+)")
"""An address of this machine, or of one of the reader's."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


def test_it_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    for page in (REPOSITORY / "docs").rglob("*.md"):
        built = site / page.relative_to(REPOSITORY / "docs").with_suffix(".html")
        assert built.is_file() or built.with_name("index.html").is_file(), page
    assert "one rank that makes a whole GPU training job slow" in (site / "index.html").read_text()
    assert (site / "repository/deploy/slurm/index.html").is_file()


def _development() -> str:
    return (REPOSITORY / "docs" / "development" / "README.md").read_text(encoding="utf-8") + "README.md"


def test_the_index_names_each_page_once() -> None:
    docs = REPOSITORY / "docs"
    linked = re.findall(r"\]\(([^)#]+)\)", (docs / "README.md").read_text(encoding="utf-8"))
    pages = {*docs.glob("*.md"), *docs.glob("*/README.md"), *docs.glob("start/*.md"), *docs.glob("tasks/*.md")}
    assert sorted(path.name for path in (docs / "development").glob("*.md") if path.name not in _development()) == []
    wanted = {str(page.relative_to(docs)) for page in pages} - {"README.md"}
    assert sorted(linked) == sorted(set(linked)), "a page stands there twice"
    assert not wanted - set(linked), f"docs/README.md has no line for {sorted(wanted - set(linked))}"


def test_the_readme_is_one_screen() -> None:
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 48, (
        f"README.md has {len(lines)} lines: what, picture, two commands, three uses; more is in docs"
    )


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = [it for it in OF_OTHERS.findall(page.read_text()) if 'rel="canonical"' not in it]
        assert not loaded, f"{page.name}: {loaded}"


def test_the_picture_of_the_floors_is_the_contracts() -> None:
    script = REPOSITORY / "scripts" / "architecture.py"
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    written = (REPOSITORY / "docs" / "development" / "architecture.svg").read_text(encoding="utf-8")
    assert made == written, "run .venv/bin/python scripts/architecture.py > docs/development/architecture.svg"
    assert ">collector<" in made and ">rankfile<" in made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_a_link_to_elsewhere_is_by_https_and_has_words(page: Path) -> None:
    """Addresses in code are those of machines, and no links. Links within are mkdocs' to check."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    bare = [each for each in re.findall(r"(?<![(<\"])\bhttps?://[^\s)>]+", text) if not MACHINE.match(each)]
    assert not bare, f"write [words](address) for {bare}"
    plain = [each for each in re.findall(r"\]\((http://[^)]+)\)", text) if not MACHINE.match(each)]
    assert not plain, f"by https: {plain}"
    halves = re.findall(r"\]\(https://[^)\s]*(?:\s|$)", text)
    assert not halves, f"a link that does not end: {halves}"


PAGE = REPOSITORY / "docs" / "operate.md"
SYSTEMD = "scripts/install_check_parts/systemd.py"
RUN_BY: dict[str, str] = json.loads((TESTS / "data" / "pages" / "operate.json").read_text())
"""How each command of the page begins, and what runs it. Its code has those words, or runs the page's whole block, of
which BLOCKS has the heading."""

BLOCKS = {f"{SYSTEMD}::_backup_and_restore": "Backup and restore", f"{SYSTEMD}::_upgrade": "Upgrade, and back"}
"""What runs whole blocks of the page, as they stand there, and under which heading those are."""

COMMANDS = [line.text for line in command_lines(PAGE)]


def _code(how: str) -> str:
    """The file of a function, once it is there."""
    file, _, name = how.partition("::")
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    assert f"def {name}(" in text, f"{how} is not there"
    return text


def _heading(command: str) -> str:
    """The heading of the page under which the command stands."""
    before = PAGE.read_text(encoding="utf-8").partition(f"    {command.partition('  ')[0]}")[0]
    return re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_run(command: str) -> None:
    runs = [(beginning, how) for beginning, how in RUN_BY.items() if command.startswith(beginning)]
    assert runs, f"nothing runs `{command}`: write the test that does, and name it in RUN_BY"
    for beginning, how in runs:
        code = _code(how)
        if how in BLOCKS:
            assert f'"{BLOCKS[how]}"' in code and "operate.md" in code, f"{how} runs no block of the page"
            assert _heading(command) == BLOCKS[how], f"`{command}` stands under another heading"
        else:
            assert beginning.strip() in code and "operate.md" in code, f"{how} does not run `{beginning}`"


def test_the_table_has_what_the_page_has() -> None:
    unused = [beginning for beginning in RUN_BY if not any(it.startswith(beginning) for it in COMMANDS)]
    assert not unused, f"the page has these no more: {unused}"
    assert len(COMMANDS) >= len(RUN_BY)


def test_the_descriptions_are_current() -> None:
    spec = importlib.util.spec_from_file_location("openapi", REPOSITORY / "scripts" / "openapi.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = {path.name: path.read_text(encoding="utf-8") for path in OPENAPI.glob("*.json")}
    assert module.texts() == written, "run .venv/bin/python scripts/openapi.py"
