"""`make gpu-check` where there is no GPU, or not much else: each part says so; and what is kept of what ran."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.paths import REPOSITORY

pytestmark = pytest.mark.apart

SCRIPT = REPOSITORY / "scripts" / "gpu-check"


def gpu_check(out: Path, *words: str, environ: dict[str, str] | None = None) -> tuple[int, str, Any]:
    """Returns the exit status, what it printed, and its JSON document."""
    command = [sys.executable, str(SCRIPT), "--out", str(out), *words]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **(environ or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    return done.returncode, done.stdout + done.stderr, json.loads((out / "gpu-check.json").read_text())


NOTHING_BUT_TORCH = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"msgspec", "yaml", "psutil", "pynvml", "numpy", "prometheus_client"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
"""
WITHOUT_TORCH = NOTHING_BUT_TORCH.replace('"msgspec"', '"torch", "msgspec"')


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists(), reason="there is a GPU")
def test_without_a_gpu_every_part_says_so_in_a_line_and_imports_no_torch(tmp_path: Path) -> None:
    """Where torch cannot be imported, a part that would import it says that: none does. So all end within seconds."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    status, printed, document = gpu_check(tmp_path / "out", environ={"PYTHONPATH": str(tmp_path)})
    assert status == 2, printed
    parts = {part["part"]: part["not_run"] for part in document["parts"]}
    assert parts.pop("versions") is None and len(parts) == 18
    assert all("no GPU" in reason for reason in parts.values()), parts
    assert document["schema"] == "laggard.gpu-check/1" and document["exit_status"] == 2
    lines = [line for line in printed.splitlines() if "not run" in line and "no GPU" in line]
    assert [line.split()[0] for line in lines] == list(parts)


@pytest.mark.slow
def test_parts_that_need_nothing_but_torch_run_where_there_is_nothing_else(tmp_path: Path) -> None:
    """Common GPU images have torch, and neither msgspec nor PyYAML. What needs them says which, and what to do."""
    (tmp_path / "sitecustomize.py").write_text(NOTHING_BUT_TORCH.replace('"numpy", ', ""))
    parts = ("calls", "ddp", "fork", "stuck-kernel")
    words = [word for name in parts for word in ("--part", name)]
    status, printed, document = gpu_check(tmp_path / "out", "--rehearse", *words, environ={"PYTHONPATH": str(tmp_path)})
    assert status == 0, printed
    reasons = {part["part"]: part["not_run"] for part in document["parts"]}
    assert [reasons[name] for name in ("calls", "ddp", "fork")] == [None] * 3, printed
    assert "msgspec" in reasons["stuck-kernel"]


def test_a_part_without_its_module_says_which(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    _, _, document = gpu_check(tmp_path / "out", "--rehearse", "--part", "calls", environ={"PYTHONPATH": str(tmp_path)})
    assert "no module torch" in document["parts"][0]["not_run"]


@pytest.mark.slow
def test_a_part_that_crashes_or_hangs_is_a_failure_and_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_check import main, plan

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
    crashed = main.run_part(plan.Part("crashes", "crashes", 300), tmp_path, False)
    assert [(each.check, each.status) for each in crashed.outcomes] == [("first", "ok"), ("crashes", "FAIL")]
    assert "ended with -6" in crashed.outcomes[1].text
    hung = main.run_part(plan.Part("hangs", "hangs", 3), tmp_path, False)
    assert hung.outcomes[0].status == "FAIL" and "did not end within 3 s" in hung.outcomes[0].text
    assert main.exit_status([crashed, hung]) == 1


def test_what_ended_is_kept_where_the_machine_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_check import main, outcome

    def run_part(part: Any, out: Path, rehearse: bool) -> Any:
        if part.name == "stuck-kernel":
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
