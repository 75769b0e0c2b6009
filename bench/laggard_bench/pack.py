"""Packs the benchmark for publication. Publishes nothing.

    python laggard_bench/pack.py --out DIST                              the tools: README, schemas, scorer, simulator
    python laggard_bench/pack.py CASES --out DIST                        and cases, and apart from them their truths
    python laggard_bench/pack.py CASES --part held-out --out DIST        a part whose truths are kept

All archives unpack into one folder, laggard-bench-VERSION, where each truth comes to lie beside its recording. Each has
the licence, and a MANIFEST with the SHA-256 of its files. The same files and the same zlib give the same archives: the
names are sorted, times and owners left out. Printed are the archives with their SHA-256: who publishes that of truths,
and keeps them, can be held to them later. Cases are packed only where validate.py finds nothing wrong.

A part is held out only if its seed is: with seed and number anybody can make a case again.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laggard_bench.answer import USAGE, cases_in, chosen
from laggard_bench.figures import VERSION
from laggard_bench.validate import problems

HERE: Final = Path(__file__).resolve().parent
NAME: Final = f"laggard-bench-{VERSION}"
LICENSES: Final = (HERE / "LICENSE", HERE.parents[1] / "LICENSE")
"""Where the licence lies: in the folder, once it was unpacked; at the top of laggard's repository."""
TOOLS: Final = (".py", ".md", ".json")
TIME: Final = 1_767_225_600
"""The Unix time that all files have: the first second of 2026. Some programs complain of 1970."""
LEVEL: Final = 6
PART: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")

Packed = tuple[str, Path]
"""A file's name in the archive, below its folder, and where it lies."""


class _Hashed:
    """A file that is written, and its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sha256 = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


class _Read:
    """A file that is read, and its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sha256 = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._sha256.update(data)
        return data

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


def tools() -> list[Packed]:
    """The folder itself, and its licence."""
    files = sorted(path for path in HERE.iterdir() if path.suffix in TOOLS and path.is_file())
    return [(f"laggard_bench/{path.name}", path) for path in files]


def recordings(cases: Iterable[Path], part: str) -> list[Packed]:
    return [
        (f"{part}/{case.name}/recording/{file.name}", file)
        for case in cases
        for file in sorted((case / "recording").iterdir())
    ]


def truths(cases: Iterable[Path], part: str) -> list[Packed]:
    return [(f"{part}/{case.name}/truth.json", case / "truth.json") for case in cases]


def pack(files: Iterable[Packed], archive: Path, about: str) -> str:
    """Writes an archive, .tar.gz, and gives its SHA-256. `about`: what its MANIFEST is called after."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(archive.name + ".part")
    with unfinished.open("wb") as file:
        hashed = _Hashed(file)
        with (
            gzip.GzipFile("", "wb", LEVEL, hashed, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            manifest = "".join(f"{digest}  {name}\n" for name, digest in _added(tar, sorted(files)))
            _add(tar, f"MANIFEST-{about}", io.BytesIO(manifest.encode()), len(manifest.encode()))
    os.replace(unfinished, archive)
    return hashed.hexdigest()


def _added(tar: tarfile.TarFile, files: Iterable[Packed]) -> Iterator[tuple[str, str]]:
    """Adds the files; the name and the digest of each."""
    for name, path in files:
        with path.open("rb") as file:
            read = _Read(file)
            _add(tar, name, read, os.fstat(file.fileno()).st_size)
        yield name, read.hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: Any, size: int) -> None:
    entry = tarfile.TarInfo(f"{NAME}/{name}")
    entry.size, entry.mode, entry.mtime = size, 0o644, TIME
    tar.addfile(entry, content)


def licence() -> Packed:
    """Raises ValueError where there is none."""
    found = next((path for path in LICENSES if path.exists()), None)
    if found is None:
        raise ValueError(f"{HERE} lacks LICENSE")
    return "laggard_bench/LICENSE", found


def checked(folder: Path) -> list[Path]:
    """The cases of a folder. Raises ValueError where there are none, or something is wrong with one, or it lacks its
    truth."""
    cases = chosen(cases_in(folder), ())
    wrong = [problem for case in cases for problem in problems(case)]
    wrong += [f"{case} lacks truth.json" for case in cases if not (case / "truth.json").exists()]
    wrong += [f"{case / 'recording'} is a link" for case in cases if (case / "recording").is_symlink()]
    if wrong:
        raise ValueError("\n".join(ascii(each)[1:-1] for each in wrong))
    return cases


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", metavar="CASES")
    parser.add_argument("--part", default="cases", help="what the cases' folder is called (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIST")
    flags = parser.parse_args(arguments)
    try:
        if not PART.fullmatch(flags.part) or flags.part == "tools" or flags.part.endswith("-truth"):
            raise ValueError("--part is a word of small letters; it is not tools, and does not end in -truth")
        wanted = [("tools", tools())]
        if flags.folder is not None:
            cases = checked(flags.folder)
            wanted += [(flags.part, recordings(cases, flags.part)), (f"{flags.part}-truth", truths(cases, flags.part))]
        for about, files in wanted:
            archive = flags.out / f"{NAME}-{about}.tar.gz"
            print(f"{pack([licence(), *files], archive, about)}  {archive}", flush=True)
    except (OSError, ValueError) as error:
        print(f"pack: {error}", file=sys.stderr)
        return USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
