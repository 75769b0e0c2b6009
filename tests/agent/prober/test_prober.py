"""The prober and the probe loop: whatever happens to the helper process, there is a report, and it says why."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_for

from laggard.agent.prober import loop as module
from laggard.agent.prober import process as process_module
from laggard.agent.prober.known import known_by
from laggard.agent.prober.loop import ProbeLoop, know_probes
from laggard.agent.prober.process import MAX_BYTES, Prober, ProberError, prober_command
from laggard.kit.errors import UsageError
from laggard.model import ProbeResult, Report, Verdict
from laggard.probes.choose import choose_probes
from laggard.probes.profiles import PROFILES

REPORT = (
    '{"verdict":"ok","node":"x","elapsed_seconds":0.1,"probes":[],"findings":[],"facts":{},"schema":"laggard.report/1"}'
)
ANSWERING = f"import sys\nfor line in sys.stdin: print({REPORT!r}, flush=True)"


Children = Callable[[], list[psutil.Process]]


@pytest.fixture
def children() -> Children:
    """Lists the processes that the test has started and not reaped. Tests before it may have left dead ones."""
    before = psutil.Process().children()
    return lambda: [child for child in psutil.Process().children() if child not in before]


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import time; time.sleep(600)", "did not answer within 0.5 s and was killed"),
        ("input(); print('no report')", "is no report: JSON is malformed"),
        ("input(); print('{}')", "is no report: Object missing required field"),
        ("input(); raise SystemExit(3)", "the prober ended: exit status 3"),
        ("import os; os.kill(os.getpid(), 11)", "the prober ended: killed by signal 11"),
        ("import os, time; os.close(1); time.sleep(600)", "the prober ended: it closed its output"),
        (f"print('x' * {2 * MAX_BYTES})", f"more than {MAX_BYTES} bytes"),
    ],
)
def test_a_helper_that_returns_no_report(
    children: Children, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    """Where it says nothing it gets half a second; else as long as a busy machine may take to start it."""
    if "os.close(1)" not in script:
        monkeypatch.setattr(process_module, "_EXIT_SECONDS", 60.0)
    prober = Prober(python(script), "n0", 0.5 if "0.5 s" in message else 60.0)
    began = time.monotonic()
    with pytest.raises(ProberError, match=message):
        prober.run_probes()
    assert time.monotonic() - began < 300
    wait_for(lambda: children() == [])


def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(ProberError, match="cannot start the prober /nowhere/python: No such file or directory"):
        Prober(["/nowhere/python"], "n0", 0.5).run_probes()


def test_another_helper_is_started_after_one_that_failed(children: Children, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"import os, sys\nif not os.path.exists({str(mark)!r}): open({str(mark)!r}, 'w'); sys.exit(1)\n{ANSWERING}"
    prober = Prober(python(script), "n0", 60.0)
    with pytest.raises(ProberError):
        prober.run_probes()
    assert prober.run_probes().node == "n0"  # the agent's name of this machine, not the helper's
    (child,) = children()
    assert prober.run_probes().verdict is Verdict.OK and children() == [child]
    prober.stop()
    wait_for(lambda: children() == [])
    with pytest.raises(ProberError, match="stopping"):
        prober.run_probes()


def test_the_real_helper_ends_its_probes_with_itself(children: Children) -> None:
    prober = Prober(prober_command("periodic"), "n0", 300.0)
    assert {probe.name for probe in prober.run_probes().probes} >= {"limits", "clock", "disks"}
    prober.stop()
    wait_for(lambda: children() == [])


def test_the_helper_ends_with_its_input_in_the_middle_of_a_round() -> None:
    script = """
import time
from laggard.agent.prober import worker as prober
prober._exit_with_agent()
print("up", flush=True)
try:
    time.sleep(600)
finally:
    print("probes ended", flush=True)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(python(script), stdin=pipe, stdout=pipe, text=True) as helper:
        assert helper.stdin is not None and helper.stdout is not None
        assert helper.stdout.readline() == "up\n"
        helper.stdin.write("round\n")  # input sends the signal too, and is no reason to end
        helper.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            helper.wait(0.2)
        helper.stdin.close()
        assert helper.stdout.read() == "probes ended\n"
        assert helper.wait(300) == 0


def test_a_helper_that_does_not_end_is_killed(children: Children) -> None:
    prober = Prober(python(f"{ANSWERING}\nimport time; time.sleep(600)"), "n0", 60.0)
    prober.run_probes()
    assert children() != []
    prober.stop()
    wait_for(lambda: children() == [])
    assert children() == []


def report(verdict: Verdict) -> Report:
    probes = (ProbeResult("clock", verdict, "no clock", 0.1), ProbeResult("disks", Verdict.OK, "", 0.1))
    return Report(verdict, "n0", 0.1, probes, (), {})


def test_the_loop_is_ready_after_the_first_complete_round() -> None:
    results = [ProberError("it died"), RuntimeError("a defect"), report(Verdict.OK)]

    def run_probes() -> Report:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    loop = ProbeLoop(run_probes, "n0", 0.05)
    assert loop.latest.report.verdict is Verdict.UNKNOWN and not loop.ready
    rounds = []
    for _ in range(3):
        loop.run_round()
        rounds.append((loop.latest.report.verdict, loop.latest.report.probes[0].reason, loop.ready))
    assert rounds == [
        (Verdict.UNKNOWN, "it died", False),
        (Verdict.UNKNOWN, "a defect in laggard: RuntimeError('a defect')", False),
        (Verdict.OK, "no clock", True),
    ]


def test_a_job_that_failed_has_the_probes_run_before_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epilog touches the file; nothing else does while nothing happens."""
    monkeypatch.setattr(module, "CHANGE_SECONDS", 0.0)
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.01)
    rounds: list[float] = []

    def run_probes() -> Report:
        rounds.append(time.monotonic())
        return report(Verdict.OK)

    changed = tmp_path / "gate-changed"
    loop = ProbeLoop(run_probes, "n0", 1000.0, changed_file=str(changed))
    loop.start()
    try:
        wait_for(lambda: loop.ready)
        changed.write_text("1")
        wait_for(lambda: len(rounds) == 2, lambda: "no round after the change")
    finally:
        loop.stop()


LAUNCHER = """
import json, sys
sys.path.insert(0, sys.argv.pop(1))
from laggard.agent.prober.process import Prober, prober_command
prober = Prober(prober_command("periodic"), "n0", 300.0)
try:
    print(len(prober.run_probes().probes))
finally:
    prober.stop()
"""


@pytest.mark.slow
def test_it_starts_where_a_launcher_alone_finds_laggard(tmp_path: Path) -> None:
    """The Python has laggard in none of its own folders."""
    library, launcher = tmp_path / "lib", tmp_path / "launcher"
    library.mkdir()
    launcher.write_text(LAUNCHER)
    for name in ("laggard", "msgspec", "pynvml", "prometheus_client", "yaml", "backports"):
        spec = importlib.util.find_spec(name)
        assert spec and (found := next(iter(spec.submodule_search_locations or ()), spec.origin))
        (library / Path(found).name).symlink_to(found)
    python = Path(sys.base_prefix) / "bin" / "python3"
    words = [python, "-sE", launcher, library]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.stdout.strip().isdecimal() and int(done.stdout) > 20, done.stdout + done.stderr


# What the agent's own process knows of the probes, without their code.

_LOADS = """
import sys
import laggard.agent.main
from laggard.agent.prober.loop import know_probes
assert len(know_probes("periodic", "n1").gate) > 20
print(*[name for name in sys.modules if name in ("laggard.probes.registry", "laggard.probes.gpu.throttle")])
"""


def test_it_is_what_the_probes_themselves_say() -> None:
    own = choose_probes(PROFILES["periodic"], (), (), "periodic")
    assert know_probes("periodic", "n1") == known_by(own, "n1") != known_by(own, "n2")


def test_without_a_process_that_tells_it_the_agent_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laggard.agent.prober.loop.own_process", lambda *_: ("/nowhere/python",))
    with pytest.raises(UsageError, match="cannot tell what profile periodic runs: .*No such file"):
        know_probes("periodic", "n1")


def test_a_profile_that_names_no_probe_is_refused(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("only: [gpu_clock_speed]\n")
    with pytest.raises(UsageError, match="no probe 'gpu_clock_speed': the probes are "):
        know_probes(str(profile), "n1")


def test_the_agent_holds_the_code_of_no_probe() -> None:
    said = subprocess.run([sys.executable, "-P", "-c", _LOADS], capture_output=True, text=True, timeout=60)
    assert (said.stdout, said.stderr) == ("\n", "")
