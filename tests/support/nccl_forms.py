"""What NCCL's releases read and write: `cd tests && python -m support.nccl_forms CLONE RCCL LIBRARY...`, with clones of
github.com/NVIDIA/nccl and github.com/ROCm/rccl that have their tags, and libnccl.so.2 of the releases after the last
tag, oldest first (wheels nvidia-nccl-cu13; those on this machine are compared by a test). It writes

    tests/data/nccl_first_tags.txt     the first release that reads each variable
    src/laggard/nccl/variables.txt     since when each is read, and a row for each that is new
    tests/data/nccl_forms.txt          the format strings of the statements that laggard reads, by release
"""

import ctypes
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import laggard.nccl
from laggard.nccl.variables import parse_version, variables, version_of_code
from support.paths import TESTS

FIRST_TAGS = TESTS / "data" / "nccl_first_tags.txt"
FORMS = TESTS / "data" / "nccl_forms.txt"
VARIABLES = Path(laggard.nccl.__file__).with_name("variables.txt")

STATEMENTS = dict(line.split("\t") for line in (TESTS / "data" / "nccl_statements.txt").read_text().splitlines()[1:])
"""What laggard reads, and the words by which a release's form of it is known: those that stay."""

_OLDEST = {"NCCL": (2, 18), "RCCL": (6, 0)}
_BY_HAND = "RCCL develop"
"""Forms of a library whose source has no clone (ROCm/rocm-systems, projects/rccl, by version or commit): they stay."""
_TAG = re.compile(r"v(2\.\d+\.\d+)-\d+|rocm-(\d+\.\d+\.\d+)")
_SOURCES = ("*.cc", "*.cpp", "*.cu", "*.h")
_PATTERN = r'NCCL_PARAM\(\w+, *"\w+"|NCCL_PARAM\(\w+, *\w+, *NCCL_\w+|"NCCL_[A-Z0-9_]+"'
_LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:PRI\w+\s*)?"(?:[^"\\\n]|\\.)*")*')
_WORD = re.compile(r'"((?:[^"\\\n]|\\.)*)"|(PRI\w+)')
_PRINTABLE = re.compile(rb"[\x20-\x7e]{8,400}(?=\n?\0)")


class Form(NamedTuple):
    """A format string of one statement, and the first and the last release that has it."""

    statement: str
    library: str
    first: str
    last: str
    text: str


def forms() -> list[Form]:
    lines = FORMS.read_text(encoding="utf-8").splitlines()
    return [Form(*line.split("\t")) for line in lines if not line.startswith("#")]


def first_tags() -> dict[str, str]:
    """The version of the first tag or library by variable; 2.3.5, the oldest, also stands for any before it."""
    return dict(line.split() for line in FIRST_TAGS.read_text().splitlines() if not line.startswith("#"))


def read_forms(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The statement and the text of those that are a form of one."""
    for text in dict.fromkeys(texts):
        head = re.sub(r"^%s:%d NCCL DIAG (?:\[\w+\]|\[?%s\]?) *", "", text)
        for statement, words in STATEMENTS.items():
            if re.search(words, head):
                yield statement, head
                break


def texts_of_library(path: Path) -> Iterator[str]:
    return (match[0].decode() for match in _PRINTABLE.finditer(path.read_bytes()))


def version_of_library(path: Path) -> str:
    code = ctypes.c_int()
    ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(code))
    return version_of_code(code.value)


def _texts_of_source(source: str) -> Iterator[str]:
    """The string literals, those that stand behind one another as one."""
    for match in _LITERALS.finditer(source):
        words = ("lx" if macro else text for text, macro in _WORD.findall(match[0]))
        yield "".join(words).replace("\\n", "").replace('\\"', '"')


def _tags(clone: Path) -> list[str]:
    tags = [tag for tag in _git(clone, "tag").split() if _TAG.fullmatch(tag)]
    return sorted(tags, key=lambda tag: [int(number) for number in re.findall(r"\d+", tag)])


def _texts_of_tag(clone: Path, tag: str) -> Iterator[str]:
    archive = subprocess.run(["git", "-C", str(clone), "archive", tag, "src"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.isfile() and member.name.endswith((".cc", ".cpp", ".h")):
                yield from _texts_of_source((files.extractfile(member) or io.BytesIO()).read().decode(errors="replace"))


def _variables_of_tag(clone: Path, tag: str) -> Iterator[str]:
    for match in _git(clone, "grep", "-ohE", _PATTERN, tag, "--", *_SOURCES).splitlines():
        name = re.findall(r"\w+", match)[-1]
        yield name if name.startswith("NCCL_") else f"NCCL_{name}"


def _variables_of_library(path: Path) -> Iterator[str]:
    """The names that stand whole in the library. Its debugging symbols name other things alike: those beside a function
    ncclParam* are new variables, and of others the table says which are."""
    data = path.read_bytes()
    known, parameters = set(variables()), {match[1].lower() for match in re.findall(rb"(ncclParam([A-Z]\w+))\0", data)}
    for match in set(re.findall(rb"NCCL_[A-Z0-9_]+(?=\0)", data)):
        letters = match.removeprefix(b"NCCL_").replace(b"_", b"").lower()
        if match.decode() in known or letters in parameters:
            yield match.decode()


def _git(clone: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True, text=True).stdout


def _write_variables(first: Mapping[str, str]) -> None:
    """Writes the releases into the table, and a row for each variable that it lacks. NCCL's sources also have names of
    its tests and builds: only what a library has as a parameter is new."""
    rows, seen = [], set()
    for row in VARIABLES.read_text(encoding="utf-8").splitlines():
        name, *fields = row.split("|")
        seen.add(name)
        since = first.get(name, "")
        if fields[1:] and fields[1] and since and parse_version(fields[1])[:2] < parse_version(since)[:2] > (2, 3):
            fields[1] = since
        rows.append("|".join((name, *fields)))
    new = [f"{name}|A1|{version}||||| New: not looked up yet" for name, version in first.items() if name not in seen]
    VARIABLES.write_text("\n".join((*rows, *new)) + "\n", encoding="utf-8")


def main(clone: Path, rccl: Path, libraries: list[Path]) -> None:
    first: dict[str, str] = {}
    found: dict[tuple[str, str, str], list[str]] = {}
    for library, repository in (("NCCL", clone), ("RCCL", rccl)):
        for tag in _tags(repository):  # ROCm's own versions stand for RCCL's
            match = _TAG.fullmatch(tag)
            version = (match and (match[1] or match[2])) or ""
            if library == "NCCL":
                for name in _variables_of_tag(clone, tag):
                    first.setdefault(name, version)
            if parse_version(version) >= _OLDEST[library]:
                for statement, text in read_forms(_texts_of_tag(repository, tag)):
                    found.setdefault((statement, library, text), []).append(version)
    for path in libraries:
        version = version_of_library(path)
        first = dict.fromkeys(_variables_of_library(path), version) | first
        for statement, text in read_forms(texts_of_library(path)):
            found.setdefault((statement, "NCCL", text), []).append(version)
    released = set(map(version_of_library, libraries))
    first = {name: version for name, version in first.items() if name in variables() or version in released}
    newest = max(first.values(), key=parse_version)
    head = f"# The first release of NCCL (from 2.3.5 to {newest}) that reads the variable: support/nccl_forms.py.\n"
    FIRST_TAGS.write_text(head + "".join(f"{name} {first[name]}\n" for name in sorted(first)))
    made = [Form(*key[:2], seen[0], seen[-1], key[2]) for key, seen in found.items()]
    lines = ["\t".join(form) for form in sorted((*made, *(form for form in forms() if form.library == _BY_HAND)))]
    head = "# statement, library, first and last release that has the form (RCCL's by ROCm): support/nccl_forms.py\n"
    FORMS.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    _write_variables(first)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
