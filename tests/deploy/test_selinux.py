"""The SELinux module of deploy/selinux: it compiles against the reference policy, and says what units and
deploy/access.yaml say. Whether a kernel that enforces it lets the daemons work was not tried."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.made_pages import script
from support.paths import REPOSITORY

MODULE = REPOSITORY / "deploy" / "selinux"
MAKEFILE = Path("/usr/share/selinux/devel/Makefile")
DAEMONS = ("agent", "collector", "reader")
TEXT = (MODULE / "laggard.te").read_text()


@pytest.mark.slow
def test_it_compiles(tmp_path: Path) -> None:
    """By the commands of docs/security.md, whose make runs checkmodule and semodule_package."""
    if not MAKEFILE.exists() or not shutil.which("checkmodule") or not shutil.which("semodule_package"):
        pytest.skip("needs selinux-policy-dev, checkpolicy and semodule-utils (Debian)")
    for name in ("laggard.te", "laggard.fc"):
        shutil.copy(MODULE / name, tmp_path)
    words = ["make", "-f", str(MAKEFILE), "laggard.pp"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "error" not in done.stderr.lower(), done.stdout + done.stderr
    assert (tmp_path / "laggard.pp").stat().st_size > 1000


@pytest.mark.parametrize("daemon", DAEMONS)
def test_each_daemon_has_its_domain_and_the_capabilities_of_its_unit(daemon: str) -> None:
    assert f"laggard_daemon(laggard_{daemon}_t)" in TEXT
    unit = (MODULE / "systemd" / f"laggard-{daemon}.service.d" / "selinux.conf").read_text()
    assert f"SELinuxContext=system_u:system_r:laggard_{daemon}_t:s0\n" in unit
    given = re.findall(rf"^allow laggard_{daemon}_t self:capability2? (?:\{{ (.*?) \}}|(\w+));$", TEXT, re.MULTILINE)
    names = {f"CAP_{name.upper()}" for words in given for name in " ".join(words).split()}
    service = (REPOSITORY / "deploy" / "systemd" / "system" / f"laggard-{daemon}.service").read_text()
    (bound,) = re.findall(r"^CapabilityBoundingSet=(.*)$", service, re.MULTILINE)
    assert names == set(bound.split())


def test_folders_that_a_daemon_writes_have_a_type_that_it_may_write() -> None:
    kinds = {"/var/lib/laggard": "laggard_var_lib_t", "/run/laggard": "laggard_runtime_t"}
    contexts = (MODULE / "laggard.fc").read_text()
    for path, kind in kinds.items():
        assert re.search(rf"^{path}\(/\.\*\)\?\s+gen_context\(system_u:object_r:{kind},s0\)$", contexts, re.MULTILINE)
    for daemon, access in script("privileges_docs").daemons().items():
        for path in access["writes"]:
            kind = next((it for folder, it in kinds.items() if path.startswith(folder)), None)
            if kind:
                assert re.search(
                    rf"^manage_\w*files_pattern\(laggard_{daemon}_t, {kind}, {kind}\)$", TEXT, re.MULTILINE
                )
