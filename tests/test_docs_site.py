"""The docs as a site: mkdocs builds it strictly, so every link and anchor leads somewhere; and it loads nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import REPOSITORY

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


def test_the_index_names_each_page_once() -> None:
    docs = REPOSITORY / "docs"
    linked = re.findall(r"\]\(([^)#]+)\)", (docs / "README.md").read_text(encoding="utf-8"))
    pages = {*docs.glob("*.md"), *docs.glob("*/README.md"), *docs.glob("start/*.md"), *docs.glob("tasks/*.md")}
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
    written = (REPOSITORY / "docs" / "architecture.svg").read_text(encoding="utf-8")
    assert made == written, "run .venv/bin/python scripts/architecture.py > docs/architecture.svg"
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
