"""What mkdocs needs to make a site of this repository's docs (mkdocs.yml names this file as a hook).

The README is the first page, and docs/README.md, the index by reader, is `pages.md`. Pages and files outside docs/ that
a page links to become part of the site, below `repository/`; links are written anew, and one that leads nowhere ends
the build. A folder in the navigation stands for all its pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[1]
FIRST_PAGE, INDEX = "index.md", "pages.md"
_PLACES = {FIRST_PAGE: "README.md", INDEX: "docs/README.md"}
"""Pages that the site has elsewhere than the repository."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LIST_AFTER_TEXT = re.compile(r"^((?![-#|>]|\d+\. |\s)[^\n]*\S)\n(?=- |1\. )", re.MULTILINE)
"""GitHub begins a list there, Python's Markdown only after an empty line."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [_opened(entry) for entry in config.nav or ()]
    return config


def _opened(entry: Any) -> Any:
    """A navigation's entry, with the pages of a folder in place of its name."""
    if isinstance(entry, dict):
        return {title: _opened(below) for title, below in entry.items()}
    if isinstance(entry, list):
        return [_opened(below) for below in entry]
    if not entry.endswith("/"):
        return entry
    pages = sorted(path.name for path in (REPOSITORY / "docs" / entry).glob("*.md") if path.name != "README.md")
    return [f"{entry}README.md", *(f"{entry}{name}" for name in pages)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README, the icon, and what pages link to outside docs/."""
    icon = REPOSITORY / "collector" / "web" / "page" / "icon.svg"
    if of_docs := files.get_file_from_path("README.md"):
        files.remove(of_docs)  # mkdocs would make it the first page
    files.append(File.generated(config, FIRST_PAGE, abs_src_path=str(REPOSITORY / "README.md")))
    files.append(File.generated(config, INDEX, abs_src_path=str(REPOSITORY / "docs" / "README.md")))
    files.append(File.generated(config, "icon.svg", abs_src_path=str(icon)))
    changelog = REPOSITORY / "CHANGELOG.md"
    files.append(File.generated(config, "repository/CHANGELOG.md", abs_src_path=str(changelog)))
    to_read = [(file.src_uri, Path(str(file.abs_src_path))) for file in files if file.src_uri.endswith(".md")]
    while to_read:
        uri, path = to_read.pop()
        for target in _targets(uri, path.read_text(encoding="utf-8")):
            outside = _site_uri(target)
            if files.get_file_from_path(outside) is None and (REPOSITORY / target).is_file():
                files.append(File.generated(config, outside, abs_src_path=str(REPOSITORY / target)))
                if outside.endswith(".md"):
                    to_read.append((outside, REPOSITORY / target))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = _repository_path(page.file.src_uri)

    def anew(link: re.Match[str]) -> str:
        return relpath(_site_uri(_target(here, link[1])), str(PurePosixPath(page.file.src_uri).parent))

    return _outside_fences(markdown, lambda text: LIST_AFTER_TEXT.sub(r"\1\n\n", LINK.sub(anew, text)))


def _outside_fences(markdown: str, change: Any) -> str:
    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(markdown[at:])])


def _targets(uri: str, markdown: str) -> Iterator[str]:
    for link in LINK.finditer(FENCE.sub("", markdown)):
        yield _target(_repository_path(uri), link[1])


def _target(here: str, link: str) -> str:
    """What a link in the file `here` leads to; both relative to the repository."""
    return normpath(str(PurePosixPath(here).parent / link))


def _repository_path(uri: str) -> str:
    """Where the repository has the page that the site has at `uri`."""
    if uri in _PLACES:
        return _PLACES[uri]
    return uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"


def _site_uri(path: str) -> str:
    """Where the site has the file that the repository has at `path`."""
    for uri, place in _PLACES.items():
        if path == place:
            return uri
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
