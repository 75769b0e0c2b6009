"""docs/install.md, tried: its own commands, word for word, in a fresh Debian whose first process is systemd.

    install_check.py [PART...]
        parts: extras, systemd, image; all where none is named

As root, with mmdebstrap and systemd-container (Debian's packages), and buildah and crun for image. The fresh systems
have no network: what pip installs is fetched here before. Each part ends with a first answer, and prints what it saw;
what is missing ends the program.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
from install_check_parts.extras import check_extras
from install_check_parts.fresh_root import BASE_PACKAGES, base_archive
from install_check_parts.image import check_image
from install_check_parts.site import Site, wheels
from install_check_parts.systemd import PACKAGES as SYSTEMD_PACKAGES
from install_check_parts.systemd import check_systemd

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("extras", "systemd", "image")


def _image_in_a_network_of_its_own(program: str, cache: Path) -> None:
    again = shlex.join([sys.executable, program, "image", "--alone", "--cache", str(cache)])
    done = subprocess.run(["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {again}"])
    if done.returncode:
        sys.exit(done.returncode)


def _check_systemd(cache: Path, fetched: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="laggard-install-", ignore_cleanup_errors=True) as folder:
        archive = base_archive(BASE_PACKAGES + SYSTEMD_PACKAGES, cache)
        with Site(ROOT, Path(folder), archive, fetched) as site:
            check_systemd(site)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--cache", type=Path, default=ROOT / "out" / "install-check")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    missing = [name for name in ("mmdebstrap", "systemd-nspawn", "nsenter") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        print(f"install-check: needs root, mmdebstrap and systemd-container; missing: {missing}", file=sys.stderr)
        return 64
    options.cache.mkdir(parents=True, exist_ok=True)
    fetched = options.cache / "wheels" if options.alone else wheels(ROOT, options.cache)
    for name in options.parts or PARTS:
        if name == "extras":
            check_extras(ROOT)
        elif name == "systemd":
            _check_systemd(options.cache, fetched)
        elif options.alone:
            check_image(ROOT, base_archive(BASE_PACKAGES, options.cache), fetched)
        else:
            _image_in_a_network_of_its_own(sys.argv[0], options.cache)
            continue
        print(f"install-check: {name}: passed", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
