"""The profiles of deploy/apparmor: they compile, and on a real kernel that enforces them the daemons do their work and
nothing else. One boot; each test checks some of what was seen."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from support.paths import REPOSITORY
from support.vm import VmUnavailable, run_in_vm

PROFILES = REPOSITORY / "deploy" / "apparmor"
DAEMONS = ("agent", "collector", "reader")
INSIDE = Path(__file__).with_name("apparmor_inside.py")
PYTHON = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
EXTRAS = ("collector", "locate")


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_profile_compiles(daemon: str) -> None:
    if not shutil.which("apparmor_parser"):
        pytest.skip("needs apparmor_parser (Debian: apparmor)")
    words = [
        "apparmor_parser",
        "-Q",
        "-K",
        "-I",
        str(PROFILES),
        "-I",
        "/etc/apparmor.d",
        str(PROFILES / f"laggard-{daemon}"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    unit = (PROFILES / "systemd" / f"laggard-{daemon}.service.d" / "apparmor.conf").read_text()
    assert f"AppArmorProfile=laggard-{daemon}\n" in unit
    assert f"profile laggard-{daemon} " in (PROFILES / f"laggard-{daemon}").read_text()


def test_capabilities_are_those_of_the_units() -> None:
    for daemon in DAEMONS:
        unit = (REPOSITORY / "deploy" / "systemd" / "system" / f"laggard-{daemon}.service").read_text()
        (bound,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
        given = re.findall(r"^  capability (\w+),$", (PROFILES / f"laggard-{daemon}").read_text(), re.MULTILINE)
        assert sorted(f"CAP_{name.upper()}" for name in given) == sorted(bound.split()), daemon


def _name(requirement: str) -> str:
    return re.split(r"[\s;<>=!~\[(]", requirement)[0]


def packages() -> list[str]:
    """What is importable of the collector's requirements, and of all that these need."""
    found: dict[str, list[str]] = {}
    own = [re.split(r"; *extra == ", it) for it in importlib.metadata.requires("laggard") or ()]
    wanted = [_name(it) for it, *extra in own if not extra or extra[0].strip("'\"") in EXTRAS]
    while wanted:
        name = wanted.pop()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if distribution.name in found or distribution.name == "laggard":
            continue
        tops = {it.parts[0] for it in distribution.files or () if it.parts[0] not in ("..", "__pycache__")}
        found[distribution.name] = [str(Path(str(distribution.locate_file(top)))) for top in sorted(tops)]
        wanted += [_name(it) for it in distribution.requires or () if "extra ==" not in it]
    importable = [path for paths in found.values() for path in paths if Path(path).exists()]
    return importable


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    if not Path(PYTHON).exists() or not shutil.which("aa-exec"):
        pytest.skip(f"needs {PYTHON}, and aa-exec (Debian: apparmor)")
    try:
        with tempfile.TemporaryDirectory(prefix="laggard-apparmor-", dir="/var/tmp") as folder:  # which the guest sees
            installed = Path(folder) / "laggard"
            shutil.copytree(REPOSITORY / "src" / "laggard", installed, ignore=shutil.ignore_patterns("__pycache__"))
            subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", installed], check=True, timeout=300)
            Path(folder).chmod(0o755)
            listed = Path(folder) / "packages"
            listed.write_text("\n".join([*packages(), str(installed)]))
            words = [sys.executable, str(INSIDE), str(PROFILES), PYTHON, str(listed)]
            result = run_in_vm(words, {}, timeout_seconds=420)
    except VmUnavailable as error:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn(f"NOT TESTED with AppArmor enforcing: {error}", stacklevel=1)
        pytest.skip(f"no virtual machine: {error}")
    line = next((it for it in result.output.splitlines() if it.startswith("APPARMOR:")), None)
    assert line, f"the script in the machine ended with {result.status}:\n{result.output[-4000:]}"
    found: dict[str, Any] = json.loads(line.removeprefix("APPARMOR:"))
    return found


pytestmark = [pytest.mark.timeout(1200)]


@pytest.mark.slow
def test_the_kernel_enforces_them_and_the_daemons_run_under_them(seen: dict[str, Any]) -> None:
    assert sorted(seen["mode"]) == [f"laggard-{daemon} (enforce)" for daemon in DAEMONS]
    assert seen["contexts"] == [f"laggard-{name} (enforce)" for name in ("reader", "agent", "collector")]
    assert seen["statuses"] == [0, 0, 0], "they end well"


@pytest.mark.slow
def test_nothing_that_they_do_is_refused(seen: dict[str, Any]) -> None:
    """The agent has its report, the collector has judged the node and keeps incidents."""
    assert seen["denials"] == []
    assert seen["probes"] > 20 and "incidents.sqlite" in seen["state"], seen
    assert not [text for text in seen["unknown"] if "ermission" in text or "laggard-reader" in text], seen["unknown"]


@pytest.mark.slow
@pytest.mark.parametrize("daemon", DAEMONS)
def test_what_they_must_not_is_refused_even_to_root(daemon: str, seen: dict[str, Any]) -> None:
    assert {what: error for what, error in seen["tried"][daemon].items() if error != "PermissionError"} == {}
