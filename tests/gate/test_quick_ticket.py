"""`laggard healthcheck` writes down what the next prologs may ask the agent; and the whole path with a real agent."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.paths import REPOSITORY
from support.ports import free_ports
from support.rows import rows
from support.waiting import wait_for

from laggard.cli import main
from laggard.gate.memory import NodeMemory
from laggard.probes.choose import fingerprint

NODE = os.uname().nodename
PROLOG = ("healthcheck", "--profile", "prolog", "--gate", "report-only")
SECONDS = 120.0


@pytest.fixture
def ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAGGARD_GATE_TICKET", str(tmp_path / "ticket"))
    return tmp_path / "ticket"


@pytest.mark.usefixtures("without_processes")
def test_a_prolog_leaves_a_ticket_for_those_after_it(ticket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket.write_text("an old one")
    main([*PROLOG, "--drain"])
    schema, profile, asked, ticks = ticket.read_text().removesuffix("\n").split(" ")
    assert (schema, profile, asked) == ("gate/1", "prolog", fingerprint(NODE))
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) * 100 - int(ticks) < 100 * 3600
    assert (ticket.stat().st_mode & 0o777, os.listdir(ticket.parent)) == (0o600, ["ticket"])
    monkeypatch.setenv("LAGGARD_GATE_TICKET", str(ticket.parent / "nowhere/ticket"))
    assert main([*PROLOG]) == 0, "a ticket that cannot be written rejects nothing"


@pytest.mark.usefixtures("without_processes")
@rows("gate/no_tickets")
def test_who_asks_for_more_than_the_agent_reports_gets_none(words: tuple[str, ...], ticket: Path) -> None:
    main([*PROLOG, *words, *(("--scontrol", "/nowhere") if "--resume" in words else ())])
    assert not ticket.exists()


@pytest.mark.usefixtures("without_processes")
def test_a_node_that_was_drained_gets_none_until_its_resume_was_seen(
    ticket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = NodeMemory(seen_drained_at=time.time())
    monkeypatch.setattr("laggard.gate.memory.load_memory", lambda node, boot_id: known)
    main([*PROLOG])
    assert not ticket.exists()
    known = NodeMemory(resumed_at=time.time())
    main([*PROLOG])
    assert ticket.exists()


@pytest.mark.usefixtures("without_processes")
def test_who_is_no_gate_or_is_not_asked_for_one_writes_none(ticket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main(["healthcheck", "--profile", "prolog"])
    assert not ticket.exists()
    monkeypatch.setenv("LAGGARD_GATE_TICKET", "ticket")
    main([*PROLOG])
    monkeypatch.delenv("LAGGARD_GATE_TICKET")
    main([*PROLOG])
    assert not ticket.exists() and not Path("ticket").exists()


OTHER_VERSION = """
import sys, laggard
laggard.__version__ = "0.0.1"
from laggard.agent.prober import loop
from laggard.cli import main

KNOWN = '''
import runpy, laggard
laggard.__version__ = "0.0.1"
runpy.run_module("laggard.agent.prober.known", run_name="__main__")
'''
loop.own_process = lambda module, *words: (sys.executable, "-c", KNOWN, *words)
sys.exit(main())
"""
"""Also the process that tells the agent what its probes are is of that version."""


@contextmanager
def agent(folder: Path, *start: str) -> Iterator[None]:
    """A real agent at run/agent/gate.sock, ready to answer."""
    port = free_ports(1)[0]
    (folder / "agent.yaml").write_text(
        f"gate_socket: {folder}/run/agent/gate.sock\nlisten_address: 127.0.0.1:{port}\nras_interval_seconds: 0\n"
    )
    words = (*(start or ("-m", "laggard")), "agent", "--config", str(folder / "agent.yaml"))
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "prologs ask at" in line:
                break
        else:
            raise AssertionError("the agent ended")
        try:
            yield
        finally:
            process.terminate()
            process.communicate(timeout=300)


@pytest.mark.slow
def test_a_real_agent_vouches_until_it_is_gone_or_is_of_another_version(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "deploy/slurm", tmp_path / "slurm")
    (tmp_path / "run/agent").mkdir(parents=True)
    for path in (tmp_path / "run", tmp_path / "run/agent"):
        path.chmod(0o755)
    laggard = tmp_path / "laggard"
    laggard.write_text(
        f'#!/bin/bash\necho run >>{tmp_path}/runs\nPYTHONPATH={REPOSITORY}/src exec {sys.executable} -m laggard "$@"\n'
    )
    laggard.chmod(0o755)
    with (tmp_path / "slurm/gate.conf").open("a") as file:
        file.write(f"LAGGARD={laggard}\nDISABLED={tmp_path}/disabled\nRUN={tmp_path}/run\nGATE_SECONDS=60\n")
    for path in (laggard, tmp_path / "slurm/gate.conf"):
        os.utime(path, (time.time() - 100, time.time() - 100))

    def prolog() -> tuple[int, bool]:
        """How often laggard has run so far, and whether the agent vouched."""
        (tmp_path / "run/gate-turn-prolog").unlink(missing_ok=True)  # no check for several jobs
        done = subprocess.run([str(tmp_path / "slurm/prolog.sh")], env={}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "runs").read_text().count("run"), "nothing critical (the agent, " in done.stderr

    with agent(tmp_path):
        assert prolog() == (1, False), "there was no ticket"
        deadline = time.monotonic() + SECONDS
        runs = 1
        while not (told := prolog())[1]:  # while the agent's first round is under way on a busy machine
            runs = told[0]
            assert time.monotonic() < deadline
        assert told == (runs, True) and prolog() == (runs, True)
    assert prolog() == (runs + 1, False), "the agent is gone"
    with agent(tmp_path, "-c", OTHER_VERSION):
        assert prolog() == (runs + 2, False)
    with agent(tmp_path):
        wait_for(lambda: prolog()[1], lambda: "no agent vouched", SECONDS)
