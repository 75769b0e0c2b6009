"""`make gpu-check` where there is no GPU, or not much else: each part says so; and what is kept of what ran."""

import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
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
    assert len(parts) == 12
    assert all("no GPU" in reason for reason in parts.values()), parts
    assert document["schema"] == "laggard.gpu-check/1" and document["exit_status"] == 2
    lines = [line for line in printed.splitlines() if "not run" in line and "no GPU" in line]
    assert [line.split()[0] for line in lines] == list(parts)


@pytest.mark.slow
def test_parts_that_need_nothing_but_torch_run_where_there_is_nothing_else(tmp_path: Path) -> None:
    """Common GPU images have torch, and neither msgspec nor PyYAML. What needs them says which, and what to do."""
    (tmp_path / "sitecustomize.py").write_text(NOTHING_BUT_TORCH.replace('"numpy", ', ""))
    parts = ("nccl-reduce", "nccl-slow")
    words = [word for name in parts for word in ("--part", name)]
    status, printed, document = gpu_check(tmp_path / "out", "--rehearse", *words, environ={"PYTHONPATH": str(tmp_path)})
    assert status == 0, printed
    reasons = {part["part"]: part["not_run"] for part in document["parts"]}
    assert reasons["nccl-reduce"] is None and "msgspec" in reasons["nccl-slow"], printed


def test_a_part_without_its_module_says_which(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    _, _, document = gpu_check(
        tmp_path / "out", "--rehearse", "--part", "nccl-reduce", environ={"PYTHONPATH": str(tmp_path)}
    )
    assert "torch" in json.dumps(document["parts"])


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
    assert hung.outcomes[0].status == "FAIL" and "did not end in its time" in hung.outcomes[0].text
    assert main.exit_status([crashed, hung]) == 1


def test_what_ended_is_kept_where_the_machine_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_check import main, outcome

    def run_part(part: Any, out: Path, rehearse: bool) -> Any:
        if part.name == "nccl-slow":
            raise KeyboardInterrupt
        (out / part.name).mkdir()
        (out / part.name / "trace.json").write_text("{}")
        return main.PartResult(part.name, 1.0, None, (outcome.Outcome("first", "ok", "well"),))

    monkeypatch.setattr(main, "run_part", run_part)
    with pytest.raises(KeyboardInterrupt):
        main.main(["--out", str(tmp_path)])
    document = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [part["part"] for part in document["parts"]] == ["nccl-reduce", "nccl-behind"] and document[
        "exit_status"
    ] == 0
    assert "nccl-behind" in (tmp_path / "table.txt").read_text()
    with tarfile.open(tmp_path / "gpu-check.tar.gz") as archive:
        assert "gpu-check/nccl-behind/trace.json" in archive.getnames()


def test_a_second_run_goes_on_where_the_first_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_check import main, outcome

    ran: list[str] = []

    def run_part(part: Any, out: Path, rehearse: bool) -> Any:
        ran.append(part.name)
        status = "FAIL" if part.name == "nccl-behind" and len(ran) < 5 else "ok"
        not_run = "no GPU" if part.name == "facts" else None
        return main.PartResult(part.name, 1.0, not_run, (outcome.Outcome("first", status, ""),))

    monkeypatch.setattr(main, "run_part", run_part)
    names = [part.name for part in main.PARTS if part.call == 2]
    assert main.main(["--out", str(tmp_path), "--lease", "1"]) == 1
    ran.clear()
    assert main.main(["--out", str(tmp_path), "--lease", "12"]) == 1
    assert ran == ["nccl-behind", *names]
    ran.clear()
    main.main(["--out", str(tmp_path), "--lease", "12"])
    assert ran == ["nccl-behind", "facts"], "what failed, and what could not run"
    ran.clear()
    main.main(["--out", str(tmp_path), "--part", "nvml"])
    assert ran == ["nvml"], "who names a part wants it run"


def test_a_lease_fits_into_its_time_by_its_own_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from gpu_check import main, plan

    assert main.main(["--out", str(tmp_path), "--lease", "plan"]) == 0
    *rows, total = capsys.readouterr().out.splitlines()
    seconds = [float(row.split()[0]) for row in rows]
    assert sum(seconds) == float(total.split()[0]) <= plan.LEASE_SECONDS == 900
    assert all(any(part.name in row for row in rows) for part in plan.PARTS if part.call)
    assert {part.name for part in plan.PARTS if not part.call} == {"no-set-device", "zero"}


@pytest.mark.parametrize("architecture", [90, 100])
def test_an_nccl_is_packed_with_the_code_of_one_gpu(architecture: int) -> None:
    """Two fat binaries, as NVIDIA's compiler leaves them in a library: headers, then entries with a kind each."""
    from gpu_check.nccl_library import packed

    def entry(kind: int, number: int, code: bytes) -> bytes:
        return (
            struct.pack("<HHIQ", kind, 0x101, 64, len(code)).ljust(28, b"\0")
            + struct.pack("<I", number).ljust(36, b"\0")
            + code
        )

    def binary(*entries: bytes) -> bytes:
        body = b"".join(entries)
        return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body

    first = binary(entry(2, 90, b"for 90"), entry(2, 100, b"for 100"), entry(1, 90, b"its PTX"))
    library = (
        b"\x7fELF"
        + struct.pack("<I", 0xBA55ED50)
        + b"no head"
        + first
        + b"between"
        + binary(entry(2, 90, b"more for 90"))
    )
    kept = lzma.decompress(packed(library, architecture))
    assert len(kept) == len(library) and b"between" in kept and b"PTX" not in kept
    assert [text in kept for text in (b"for 90", b"more for 90", b"for 100")] == (
        [True, True, False] if architecture == 90 else [False, False, True]
    )
    with pytest.raises(ValueError, match="no code for sm_75"):
        packed(library, 75)
