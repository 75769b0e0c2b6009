"""Packs a folder of the benchmark that others can use: what it holds, with a list of its files and their digests.

    python scripts/pack_bench.py bench/strange --version 2026.11 --out dist

The folder is taken as it is. It needs a README.md; whoever uses it needs a schema of its cases, a scorer and an entry:
what lacks is said. The archive is the same for the same files: times and owners are left out."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

NEEDED: Final = ("README.md", "LICENSE")
LEFT_OUT: Final = ("__pycache__", ".git")
MAX_FILE_MIB: Final = 8
LICENSE: Final = Path(__file__).resolve().parents[1] / "LICENSE"


def files_of(folder: Path) -> dict[str, bytes]:
    """The folder's files by their names in the archive; the repository's licence where it has none of its own. Raises
    ValueError for what must not be in it."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if any(part in LEFT_OUT for part in path.parts) or path.is_dir():
            continue
        if path.is_symlink():
            raise ValueError(f"{path} is a link: an archive holds files")
        if path.stat().st_size > MAX_FILE_MIB << 20:
            raise ValueError(f"{path} is larger than {MAX_FILE_MIB} MiB")
        found[path.relative_to(folder).as_posix()] = path.read_bytes()
    if "LICENSE" not in found and LICENSE.exists():
        found["LICENSE"] = LICENSE.read_bytes()
    lacking = [name for name in NEEDED if name not in found]
    if lacking:
        raise ValueError(f"{folder} lacks {' and '.join(lacking)}")
    return found


def pack(files: dict[str, bytes], name: str) -> bytes:
    """The archive, .tar.gz, with a MANIFEST of every file's SHA-256."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {path}" for path, data in sorted(files.items())]
    whole = {**files, "MANIFEST": ("\n".join(lines) + "\n").encode()}
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path, data in sorted(whole.items()):
            about = tarfile.TarInfo(f"{name}/{path}")
            about.size, about.mode = len(data), 0o644
            archive.addfile(about, io.BytesIO(data))
    return packed.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", required=True, help="such as 2026.11")
    parser.add_argument("--out", type=Path, default=Path("dist"))
    options = parser.parse_args(arguments)
    name = f"laggard-bench-{options.folder.resolve().name}-{options.version}"
    try:
        packed = pack(files_of(options.folder), name)
    except (OSError, ValueError) as problem:
        print(f"pack_bench: {problem}", file=sys.stderr)
        return 64
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.tar.gz").write_bytes(packed)
    print(options.out / f"{name}.tar.gz")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
