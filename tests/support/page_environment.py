"""An environment that has only what a page of the docs installs: laggard with the extras of its `pip install` lines.
And what the reader has before, such as torch. The packages are this environment's own, by links."""

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from support.paths import REPOSITORY

_PIP = re.compile(r"pip install (?:'\.\[([\w,]+)\]'|'laggard\[([\w,]+)\]'|\.(?:\s|$))", re.MULTILINE)


def extras_of(page: Path) -> set[str]:
    """The extras that the page's lines of pip install."""
    found = _PIP.findall(page.read_text(encoding="utf-8"))
    return {extra for groups in found for group in groups for extra in group.split(",") if extra}


def make_environment(folder: Path, page: Path, before: Iterable[str] = ("torch",)) -> Path:
    """The folder of its programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (packages / "laggard.pth").write_text(f"{REPOSITORY / 'src'}\n")
    programs = folder / "bin"
    _program(programs / "laggard", "laggard.cli", "main")
    for found in _closure([*_needed(extras_of(page)), *map(Requirement, before)]):
        _link(found, packages)
        for each in found.entry_points:
            if each.group == "console_scripts":
                _program(programs / each.name, each.module, each.attr)
    return programs


def _needed(extras: set[str]) -> list[Requirement]:
    """What laggard needs with these extras, by pyproject.toml: the installed metadata may be older."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    base = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)[0]
    optional = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    found = [base]
    for extra in extras:
        found += re.findall(rf"^{extra} = \[(.*?)\]\s*(?:#.*)?$", optional, re.MULTILINE | re.DOTALL)
    assert len(found) == 1 + len(extras), f"pyproject.toml lacks one of {sorted(extras)}"
    return [Requirement(each) for part in found for each in re.findall(r'"([^"]+)"', part)]


def _closure(wanted: list[Requirement]) -> list[Distribution]:
    """All distributions that these need, that are here."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    while wanted:
        it = wanted.pop()
        key = (it.name.lower().replace("_", "-"), ",".join(sorted(it.extras)))
        if key in seen or (it.marker and not it.marker.evaluate({"extra": ""})):
            continue
        seen.add(key)
        found[key[0]] = each = distribution(it.name)
        for text in each.requires or ():
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *it.extras)):
                wanted.append(Requirement(str(needed).partition(";")[0]))
    return list(found.values())


def _link(found: Distribution, packages: Path) -> None:
    """Links to the top-level names of what it installed."""
    for name in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
        place = packages / name
        if not place.exists():
            place.symlink_to(Path(str(found.locate_file(name))))


def _program(path: Path, module: str, name: str) -> None:
    path.write_text(f"#!{path.parent}/python\nimport sys\nfrom {module} import {name}\nsys.exit({name}())\n")
    path.chmod(0o755)
