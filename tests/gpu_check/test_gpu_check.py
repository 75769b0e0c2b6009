"""`make gpu-check` where there is no GPU: each part says so; and its trainings, rehearsed on the CPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.paths import REPOSITORY
from support.warm import Warm, WarmProcess

pytestmark = [pytest.mark.longest(125), pytest.mark.apart]

SCRIPT = REPOSITORY / "scripts" / "gpu-check"


def gpu_check(out: Path, *words: str, environ: dict[str, str] | None = None) -> tuple[int, str, Any]:
    """Returns the exit status, what it printed, and its JSON document."""
    command = [sys.executable, str(SCRIPT), "--out", str(out), *words]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **(environ or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    return done.returncode, done.stdout + done.stderr, json.loads((out / "gpu-check.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_every_part_gives_the_reason_and_the_next_one_runs(
    tmp_path: Path, warm_torch: Warm, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each part's process has torch from the start: seventeen imports would take most of a minute."""
    from gpu_check import main

    def run_limited(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> tuple[int, str]:
        done = warm_torch.run(command[1:], environ, seconds)
        return done.returncode, done.stdout + done.stderr

    monkeypatch.setattr(main, "run_limited", run_limited)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    status = main.main(["--out", str(tmp_path)])
    printed = "".join(capfd.readouterr())
    document = json.loads((tmp_path / "gpu-check.json").read_text())
    assert status == 2 and "Traceback" not in printed, printed
    parts = {part["part"]: part["not_run"] for part in document["parts"]}
    assert parts.pop("versions") is None and len(parts) == 16
    assert all("no GPU" in reason for reason in parts.values()), parts
    assert document["schema"] == "laggard.gpu-check/1" and document["exit_status"] == 2
    assert all(name in printed for name in parts)


NOTHING_BUT_TORCH = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"msgspec", "yaml", "psutil", "pynvml", "numpy", "prometheus_client"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.slow
def test_the_events_part_imports_nothing_but_torch(tmp_path: Path) -> None:
    """Common GPU images have torch, and neither msgspec nor PyYAML."""
    (tmp_path / "sitecustomize.py").write_text(NOTHING_BUT_TORCH)
    status, printed, document = gpu_check(
        tmp_path / "out", "--part", "events", "--part", "ddp", environ={"PYTHONPATH": str(tmp_path)}
    )
    assert status == 2, printed
    assert ["no GPU: torch" in part["not_run"] for part in document["parts"]] == [True, True]


def test_a_part_without_its_module_says_which(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOTHING_BUT_TORCH.replace('"msgspec"', '"torch", "msgspec"'))
    _, _, document = gpu_check(tmp_path / "out", "--part", "events", environ={"PYTHONPATH": str(tmp_path)})
    assert "no module torch" in document["parts"][0]["not_run"]


@pytest.mark.slow
def test_a_part_that_crashes_or_hangs_is_a_failure_and_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_check import main

    package = tmp_path / "gpu_check_parts"
    package.mkdir()
    (package / "crashes.py").write_text(
        "import os\nfrom gpu_check.outcome import judged\n"
        "def run(context):\n    yield judged('first', True, 'well')\n    os.abort()\n"
    )
    (package / "hangs.py").write_text("import time\ndef run(context):\n    time.sleep(600)\n    yield\n")
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.path.insert(0, {str(REPOSITORY / 'scripts')!r})\n"
        f"import gpu_check.parts\ngpu_check.parts.__path__.append({str(package)!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    crashed = main.run_part(main.Part("crashes", "crashes", 300, 1), tmp_path, False)
    assert [(each.check, each.status) for each in crashed.outcomes] == [("first", "ok"), ("crashes", "FAIL")]
    assert "ended with -6" in crashed.outcomes[1].text
    hung = main.run_part(main.Part("hangs", "hangs", 3, 1), tmp_path, False)
    assert hung.outcomes[0].status == "FAIL" and "did not end within 3 s" in hung.outcomes[0].text
    assert main.exit_status([crashed, hung]) == 1


def test_what_ended_is_kept_where_the_machine_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_check import main, outcome

    def run_part(part: Any, out: Path, rehearse: bool) -> Any:
        if part.name == "calls":
            raise KeyboardInterrupt
        (out / part.name).mkdir()
        (out / part.name / "trace.json").write_text("{}")
        return main.PartResult(part.name, 1.0, None, (outcome.Outcome("first", "ok", "well"),))

    monkeypatch.setattr(main, "run_part", run_part)
    with pytest.raises(KeyboardInterrupt):
        main.main(["--out", str(tmp_path)])
    document = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [part["part"] for part in document["parts"]] == ["versions", "events"] and document["exit_status"] == 0
    assert "events" in (tmp_path / "table.txt").read_text()
    with tarfile.open(tmp_path / "gpu-check.tar.gz") as archive:
        assert "gpu-check/events/trace.json" in archive.getnames()


def test_a_plan_takes_what_ends_in_time_and_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_check import main

    limits = {}

    def run_part(part: Any, out: Path, rehearse: bool) -> Any:
        limits[part.name] = part.seconds
        return main.PartResult(part.name, 1.0, "no GPU", ())

    monkeypatch.setattr(main, "run_part", run_part)
    main.main(["--out", str(tmp_path), "--plan", "2"])
    assert list(limits) == ["versions", "events", "calls"] and all(limit <= 120 for limit in limits.values())
    said = capsys.readouterr().err
    assert "in 2 minutes: versions (10 s), events (45 s), calls (45 s); left out: nvml," in said
    for words in ("0", "-1", "nan", "many", "inf"):
        with pytest.raises(SystemExit):
            main.main(["--out", str(tmp_path), "--plan", words])


def test_a_batch_is_counted_without_a_process_group() -> None:
    """What `calls` does on a GPU: gloo has no batches."""
    from gpu_check.lab import Groups

    from laggard.trainer_hooks.collectives.process_group import _wrap_batch_end, _wrap_batch_start
    from laggard.trainer_hooks.record.recorder import Recorder

    recorder, groups = Recorder([]), Groups()
    group = SimpleNamespace(group_name="g")
    _wrap_batch_start(lambda self: None, recorder, groups)(group)  # type: ignore[arg-type]
    _wrap_batch_end(lambda self: object(), recorder, groups)(group)  # type: ignore[arg-type]
    assert recorder.totals.errors == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", ["calls", "ddp", "tune-nccl"])
def test_what_can_run_on_a_cpu_is_right_there(tmp_path: Path, part: str) -> None:
    """The trainings themselves: started, compared and located as on GPUs. How long a call takes is not judged here."""
    status, printed, document = gpu_check(tmp_path, "--rehearse", "--part", part)
    (result,) = document["parts"]
    assert (status, result["not_run"]) == (0, None), printed
    assert {each["status"] for each in result["outcomes"]} <= {"ok", "info"}, printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", ["fsdp2", "pipeline", "slow-rank"])
def test_trainings_of_other_parts_are_right_on_a_cpu(
    tmp_path: Path, part: str, warm_torch: Warm, warm_deepspeed: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `ddp` above, but that the parts run in this process, and their ranks have torch from the start: a rank's own
    import takes longer than its training."""
    from gpu_check import main, outcome
    from gpu_check.jobs import launch

    def start(command: Sequence[str], env: Mapping[str, str], **_: Any) -> WarmProcess:
        return (warm_deepspeed if part == "pipeline" else warm_torch).start(command[1:], env)

    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(Popen=start, PIPE=None))
    monkeypatch.setenv("GPU_CHECK_REHEARSAL", "1")
    (chosen,) = (each for each in main.PARTS if each.name == part)
    module = importlib.import_module(f"gpu_check.parts.{chosen.module}")
    found = list(module.run(outcome.Context(tmp_path, rehearse=True), *chosen.words))
    assert found and {each.status for each in found} <= {"ok", "info"}, found
