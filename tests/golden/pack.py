"""Packs the cases of bench/real_quality.py into tests/data/golden/real_runs, from where the golden set reads them.

    python tests/golden/pack.py out/real_runs       each case there, in place of what was packed of it before

The same case gives the same bytes: files by name, without owners and times. 101 cases are some 9 MB; packing ends with
status 1, and keeps nothing, where they would be more than MAX_BYTES.
"""

import argparse
import io
import lzma
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from golden.real import ENDING, PACKED
from laggard.kit.words import counted

MAX_BYTES = 12 << 20
"""The most that all packed cases may be: every clone of the repository carries them."""


def packed(case: Path) -> bytes:
    """A case's truth and trace as one file."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in [case / "truth.json", *sorted(it for it in (case / "trace").rglob("*") if it.is_file())]:
            member = tarfile.TarInfo(str(path.relative_to(case)))
            member.size, member.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                archive.addfile(member, file)
    return lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main(arguments: Sequence[str] | None = None, into: Path = PACKED) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="out/real_runs, with a folder for each case")
    folder = parser.parse_args(arguments).folder
    cases = sorted(path.parent for path in folder.glob("*/truth.json") if (path.parent / "trace").is_dir())
    if not cases:
        print(f"pack: no case in {folder}: a case has truth.json and trace", file=sys.stderr)
        return 64
    found = {f"{case.name}{ENDING}": packed(case) for case in cases}
    kept = sum(path.stat().st_size for path in into.glob(f"*{ENDING}") if path.name not in found)
    size = kept + sum(map(len, found.values()))
    if size > MAX_BYTES:
        print(
            f"pack: {size:,} bytes are more than {MAX_BYTES:,}: leave cases out, or record fewer steps", file=sys.stderr
        )
        return 1
    into.mkdir(parents=True, exist_ok=True)
    for name, data in found.items():
        (into / name).write_bytes(data)
    print(f"{counted(len(found), 'case')} packed into {into}; all that is there is {size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
