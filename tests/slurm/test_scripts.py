"""The scripts of deploy/slurm: shellcheck finds nothing in them, and as shipped they change nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import REPOSITORY

SCRIPTS = REPOSITORY / "deploy" / "slurm"
ENTRIES = ("prolog.sh", "prolog-gang.sh", "epilog.sh", "healthcheck.sh")


def test_the_setup_is_checked_once_after_a_boot_and_what_is_said_is_one_line(tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS, tmp_path / "slurm")
    laggard = tmp_path / "laggard"
    laggard.write_text(f'#!/bin/bash\necho "$SLURM_CONF $@" >> {tmp_path}/words\necho X\necho "gate: pass, Y"\n')
    laggard.chmod(0o755)
    with (tmp_path / "slurm/gate.conf").open("a") as file:
        file.write(f"LAGGARD={laggard}\nDISABLED={tmp_path}/disabled\nCHECKED={tmp_path}/checked\nMODE=enforce\n")
        file.write("SLURM_CONF=/a/slurm.conf\n")
    for _ in range(2):
        done = subprocess.run([str(tmp_path / "slurm/prolog.sh")], env={}, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, "X; gate: pass, Y\n")
    subprocess.run([str(tmp_path / "slurm/check.sh")], env={}, timeout=300)
    words = (tmp_path / "words").read_text().splitlines()
    assert ["--check-gate" in line for line in words] == [True, False, True]
    assert all(line.startswith("/a/slurm.conf healthcheck ") for line in words)


@pytest.mark.parametrize("name", [*ENTRIES, "check.sh", "gate.sh", "gate.conf", "idle-rings.sh", "idle-ring.sh"])
def test_shellcheck_finds_nothing(name: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck: scripts/setup --system installs it on Debian")
    words = ("-x", "-s", "bash", *(("-e", "SC2034") if name.startswith("gate.") else ()))  # what it sets others read
    done = subprocess.run(["shellcheck", *words, str(SCRIPTS / name)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("conf", [None, "MODE=enforce\nCOLLECTOR=none\n"], ids=["as_shipped", "enforcing"])
def test_without_a_path_and_without_laggard_nothing_is_rejected(name: str, conf: str | None, tmp_path: Path) -> None:
    """SLURM gives its scripts no PATH; here they also do not find laggard at its path."""
    shutil.copytree(SCRIPTS, tmp_path / "slurm")
    settings = f"LAGGARD={tmp_path}/nowhere\nDISABLED={tmp_path}/disabled\n{conf or ''}"
    with (tmp_path / "slurm/gate.conf").open("a") as file:
        file.write(settings)
    done = subprocess.run([str(tmp_path / "slurm" / name)], env={}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "nowhere" in done.stderr


@pytest.mark.parametrize("name", ["prolog.sh", "prolog-gang.sh", "epilog.sh"])
@pytest.mark.parametrize(
    ("line", "status"),
    [("gate: reject", 1), ("gate: pass, nothing critical", 0), ("gate: rejected", 0), ("", 0)],
)
def test_only_the_gates_own_line_rejects(name: str, line: str, status: int, tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS, tmp_path / "slurm")
    laggard = tmp_path / "laggard"
    laggard.write_text(f'#!/bin/bash\necho "$@" > {tmp_path}/words\necho "laggard: X"\necho "{line}"\nexit 1\n')
    laggard.chmod(0o755)
    with (tmp_path / "slurm/gate.conf").open("a") as file:
        file.write(f"LAGGARD={laggard}\nDISABLED={tmp_path}/disabled\n")
    run = lambda: subprocess.run(  # noqa: E731
        [str(tmp_path / "slurm" / name)], env={"SLURM_JOB_GPUS": "0,3"}, capture_output=True, text=True, timeout=300
    )
    done = run()
    assert done.returncode == status and "laggard: X" in done.stderr
    words = (tmp_path / "words").read_text()
    assert words.startswith(
        f"healthcheck --profile {name.partition('-gang')[0].removesuffix('.sh')} --gate report-only "
    )
    assert " --drain " in words and words.endswith(" --gpus 0,3\n")
    (tmp_path / "disabled").touch()
    (tmp_path / "words").unlink()
    assert run().returncode == 0 and not (tmp_path / "words").exists()


def test_gate_conf_is_as_harmless_as_no_gate_conf() -> None:
    lines = [line for line in (SCRIPTS / "gate.conf").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["MODE=report-only"]


@pytest.mark.parametrize("seconds", ["15s", "1.5", "-1", "0", "x[$(exit)]", ""])
def test_a_limit_that_is_no_number_drains_no_node(seconds: str, tmp_path: Path) -> None:
    """bash's own error about it would be exit status 1."""
    done, _ = run_prolog(tmp_path, 'echo "gate: pass, Y"', f"GATE_SECONDS='{seconds}'\n")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "gate: pass, Y"), done.stderr
    assert "laggard: GATE_SECONDS takes a whole number" in done.stderr


def test_laggard_is_told_to_end_before_it_is_killed(tmp_path: Path) -> None:
    _, words = run_prolog(tmp_path, 'echo "gate: pass, Y"', "GATE_SECONDS=9\n")
    assert " --deadline 7 " in words


@pytest.mark.slow
def test_who_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """A prolog must not leave behind what may drain the node when the job runs."""
    lock = tmp_path / "lock"
    body = f"trap '' TERM INT HUP; exec 9>{lock}; flock 9; echo began\n(sleep 1000 & sleep 1000)\n"
    done, _ = run_prolog(tmp_path, body, f"GATE_SECONDS=2\nMODE=enforce\nCHECKED={tmp_path}/checked\n")
    assert (done.returncode, done.stderr) == (0, "began\nlaggard: no answer within 2 s\n")
    subprocess.run(["flock", "-w", "300", str(lock), "true"], check=True)  # held by each of the three processes
    assert (tmp_path / "checked").read_text() == "", "the setup is checked another time"


def test_a_wrong_setup_is_told_until_it_is_right_and_a_change_is_checked_again(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch()
    body = f'[ -e {wrong} ] && echo "gate: WRONG SETUP: X"; echo "gate: pass, Y"'
    conf = f"MODE=enforce\nCHECKED={tmp_path}/checked\n"
    checks = []
    for step in ("wrong", "still wrong", "right", "checked", "changed"):
        if step == "right":
            wrong.unlink()
        if step == "changed":
            until = (tmp_path / "checked").stat().st_mtime_ns + 10**9
            os.utime(tmp_path / "slurm/gate.conf", ns=(until, until))
        _, words = run_prolog(tmp_path, body, conf)
        checks.append("--check-gate" in words)
    assert checks == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("conf", "complaint"),
    [
        ("MODE=enforce\r\n", "has Windows line ends: sed -i"),
        ("FLAGS=(--skip disks\n", "gate.conf is no bash ("),
        ("LAGGARD=/nowhere/laggard\n", "there is no program LAGGARD=/nowhere/laggard"),
    ],
    ids=["windows", "no_bash", "no_laggard"],
)
def test_check_sh_names_what_is_wrong_in_the_file(conf: str, complaint: str, tmp_path: Path) -> None:
    run_prolog(tmp_path, "echo set up", conf)
    done = subprocess.run([str(tmp_path / "slurm/check.sh")], env={}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and complaint in done.stdout and done.stdout.count("\n") == 1, done


def test_a_health_check_that_is_switched_off_says_so(tmp_path: Path) -> None:
    (tmp_path / "disabled").touch()
    run_prolog(tmp_path, 'echo "gate: switched off"', "")
    assert not (tmp_path / "words").exists(), "a prolog that is switched off starts nothing"
    check = str(tmp_path / "slurm/healthcheck.sh")
    done = subprocess.run([check], env={}, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "gate: switched off\n")
    assert f" --kill-switch {tmp_path}/disabled " in (tmp_path / "words").read_text()


def run_prolog(folder: Path, body: str, conf: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """A prolog with these lines in gate.conf, whose laggard is a script of bash. Returns what it did, and laggard's
    words."""
    laggard = folder / "laggard"
    if not laggard.exists():
        shutil.copytree(SCRIPTS, folder / "slurm")
        laggard.write_text(f'#!/bin/bash\necho "$@ " >{folder}/words\n{body}\n')
        laggard.chmod(0o755)
        with (folder / "slurm/gate.conf").open("a") as file:
            file.write(f"LAGGARD={laggard}\nDISABLED={folder}/disabled\nRUN={folder}/run\n{conf}")
    command = [str(folder / "slurm/prolog.sh")]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=300)
    words = folder / "words"
    return done, words.read_text() if words.exists() else ""
