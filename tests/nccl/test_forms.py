"""Each form in which a release of NCCL or RCCL writes what laggard reads (support/nccl_forms.py) is read for it."""

import importlib.metadata
import re
from pathlib import Path

import pytest
from support.nccl_forms import STATEMENTS, Form, forms, read_forms, texts_of_library, version_of_library

from laggard.nccl.log import model
from laggard.nccl.log.model import NcclProcess
from laggard.nccl.log.reader import parse_nccl_log
from laggard.nccl.variables import parse_version
from laggard.probes.nccl.rules.own_diagnostics import judge_own_diagnostics

READ = {
    "a channel to a network": (("IB", "/GDRDMA"), "connections"),
    "a channel to a switch": (("SHARP", "/GDRDMA"), "connections"),
    "a channel between GPUs": (("CUMEM",), "connections"),
    "a channel over shared memory": (("direct", "direct"), "connections"),
    "the network": (("IB",), "network"),
    "the devices": ((" [0]mlx5_0:1/IB",), "rdma_devices"),
    "no device": ((), model.NO_DEVICE),
    "a plugin by name": (("ofi",), "variables"),
    "no plugin": (("NET", " ofi libnccl-net-ofi.so"), model.PLUGIN_MISSING),
    "a plugin that failed": (("ofi",), model.PLUGIN_FAILED),
    "a communicator": (("ncclCommInitRank",), "communicators"),
    "a variable": (("NCCL_ALGO", "Ring"), "variables"),
    "GPUDirect of a device": (("IB", "Disabled"), model.GDR_NO_MODULE),
    "GPUDirect too far": ((), model.GDR_FAR),
    "peer-to-peer refused": ((), model.P2P_REFUSED),
    "peer-to-peer failed": ((), model.P2P_FAILED),
    "no IPC": ((), model.NO_IPC),
    "a queue pair": ((), model.QUEUE_PAIR_FAILED),
    "no library": (("ibv_x", "y", "z"), model.NO_LIBRARY),
    "a refused device": (("mlx5_0",), model.DEVICE_REFUSED),
    "a failed transfer": (("10.0.0.1<1>", "12"), model.NOT_DELIVERED),
    "versions": ((), model.MISMATCH),
    "rings": ((), "ring_gdr"),
    "a value": (("yes", "NCCL_BUFFSIZE"), "NCCL_ENV_INERT"),
    "a degraded fabric": ((), "FABRIC_NOT_READY"),
    "a slow transfer": (("10.0.0.1<1>", "mlx5_0"), "slow_transfers"),
    "a changed speed": (("mlx5_0", "5"), "RDMA_RATE_LOW"),
    "diagnostics: ECC": (("{1}",), "GPU_ECC_UNCORRECTED|NCCL_DIAGNOSTICS"),
    "diagnostics: NVLink": (("{1}",), "NVLINK_DOWN|NCCL_DIAGNOSTICS"),
    "diagnostics: alike": (("{1}",), "NCCL_DIAGNOSTICS"),
    "diagnostics: environment": (("NCCL_ALGO",), "NCCL_DIAGNOSTICS|"),
    "diagnostics: Xid": (("7", "times"), "GPU_XID"),
    "diagnostics: bandwidth": (("read", "gpu01"), "NCCL_DIAGNOSTICS"),
    "diagnostics: topology": (("{2,3}",), "NCCL_DIAGNOSTICS"),
    "diagnostics: peer-to-peer": (("3/4",), "NCCL_DIAGNOSTICS"),
}
"""By statement: what stands in the place of the first texts, and what is read: a field of NcclProcess, a kind of
hint, or the code of a finding."""
ATTENTION = ("a value", "a degraded fabric")
NUMBERS = {"p": "0x7f3a", "x": "1a000", "u": "7", "d": "9", "f": "171.3"}
_SPECIFIER = re.compile(r"%(%|[-0-9.]*(?:h|l|ll|z)?([spxudf]))")


def line_of(form: Form) -> str:
    texts = iter(READ[form.statement][0])
    numbers = iter("987654321" * 9)

    def filled(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if match[2] == "s":
            before, text = match.string[: match.start()][-1:], next(texts, "")
            return text if text[:1] in "/ " or not before.isalpha() else ""
        return next(numbers) if match[2] in "du" else NUMBERS[match[2]]

    text = _SPECIFIER.sub(filled, form.text)
    if form.statement.startswith("diagnostics:"):
        return f"gpu00:4100 NCCL DIAG [INFO] {text}\n"
    return f"gpu00:4100:4100 [0] NCCL {'ATTN' if form.statement in ATTENTION else 'INFO'} {text}\n"


def read(form: Form) -> set[str]:
    (process,) = parse_nccl_log(line_of(form)).processes
    empty = NcclProcess("", 0)._asdict()
    fields = {name for name, value in process._asdict().items() if value != empty[name]}
    codes = {found.code for found in judge_own_diagnostics([process])}
    return fields | codes | {hint.kind for hint in process.hints}


@pytest.mark.parametrize("form", forms(), ids=lambda form: f"{form.statement} of {form.library} {form.last}")
def test_each_form_is_read(form: Form) -> None:
    expected = set(READ[form.statement][1].split("|"))
    assert "" in expected or read(form) & expected, line_of(form)


@pytest.mark.parametrize("form", [form for form in forms() if "%s" in form.text.partition(" via ")[2]],
                         ids=lambda form: f"{form.text} of {form.library} {form.last}")  # fmt: skip
def test_a_tail_that_no_release_has_yet_hides_nothing(form: Form) -> None:
    for tail in ("/rail=3", "/Pooled", "/Pooled/x=y"):
        line = line_of(form).replace(" comm ", f"{tail} comm ") if " comm " in form.text else line_of(form)[:-1] + tail
        (process,) = parse_nccl_log(f"{line.rstrip()}\n").processes
        (plain,) = parse_nccl_log(line_of(form)).processes
        assert process.connections == plain.connections, line


def test_each_statement_has_a_form_in_the_newest_release() -> None:
    """What a release says no more is listed: laggard must not wait for it."""
    newest = max((form.last for form in forms() if form.library == "NCCL"), key=parse_version)
    gone = set(STATEMENTS) - {form.statement for form in forms() if form.last == newest}
    assert gone == {"a plugin by name", "GPUDirect too far"}
    assert set(READ) == set(STATEMENTS)


@pytest.mark.parametrize("package", ["nvidia-nccl-cu12", "nvidia-nccl-cu13"])
def test_the_library_of_this_machine_has_no_form_of_its_own(package: str) -> None:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    path = next(Path(str(file.locate())) for file in files if file.name.startswith("libnccl.so"))
    known = {(form.statement, form.text) for form in forms()}
    new = set(read_forms(texts_of_library(path))) - known
    assert not new, f"NCCL {version_of_library(path)} writes them: python -m support.nccl_forms"
