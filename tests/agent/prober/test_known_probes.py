"""What the agent's own process knows of the probes, without their code."""

import subprocess
import sys
from pathlib import Path

import pytest

from laggard.agent.prober.known import known_by
from laggard.agent.prober.loop import know_probes
from laggard.kit.errors import UsageError
from laggard.probes.choose import choose_probes
from laggard.probes.profiles import PROFILES

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
