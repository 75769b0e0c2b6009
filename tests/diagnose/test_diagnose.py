"""`laggard diagnose`: files from some machine, recognised by their content."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import answer, diagnose_text
from support.paths import MACHINES, SHARED

from laggard.cli import main
from laggard.nccl.environment_text import parse_environment

recorded = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="no recorded hardware here")

ENV = "SHELL=/bin/bash\nNCCL_IB_DISABLE=1\nNCCL_DEBUG=INFO\nPATH=/usr/bin:/bin\nHOME=/home/ada\n"
DMESG = """[    0.000000] Linux version 5.15.0-113-generic
[12345.678901] NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
[12345.678905] NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.
[12346.000000] mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 2): Detected insufficient power on the PCIe slot (27W).
[12347.000000] pcieport 0000:15:01.0: AER: Corrected error message received from 0000:17:00.0
[12347.000001] nvme 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
[12348.000001] mlx5_core 0000:9a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer
"""
LSPCI = """15:01.0 PCI bridge: Intel Corporation Device 352a (rev 04)
\tBus: primary=15, secondary=16, subordinate=1c, sec-latency=0
19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
1a:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
3b:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
"""


def codes(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(found["code"], found["severity"], found["device"]) for found in document["findings"]]


def write(tmp_path: Path, **files: str) -> list[Path]:
    paths = [tmp_path / name for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text)
    return paths


def test_an_environment_without_hardware_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = answer(capsys, *write(tmp_path, env=ENV))
    assert (status, document["verdict"], document["schema"]) == (0, "ok", "laggard.diagnosis/1")
    assert codes(document) == [("NCCL_ENV_HARMFUL", "warning", "NCCL_IB_DISABLE")]
    nothing = {"unknown": "", "first_line": None, "left": [], "left_count": 0}
    assert document["files"] == [{"path": str(tmp_path / "env"), "kind": "environment", **nothing}]
    assert document["facts"][str(tmp_path / "env")]["nccl_variables"] == ["NCCL_DEBUG", "NCCL_IB_DISABLE"]


@pytest.mark.parametrize(
    ("name", "severity", "fix"),
    [
        ("NCCL_IB_GIDINDEX", "warning", "Set NCCL_IB_GID_INDEX instead"),
        ("NCCL_FROBNICATE", "info", "A newer NCCL may know it"),
        ("NCCL_IB_HCA_POLICY", "info", "A newer NCCL may know it"),
    ],
)
def test_an_unknown_variable_for_an_nccl_that_is_not_known(
    name: str, severity: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = answer(capsys, *write(tmp_path, env=f"NCCL_DEBUG=INFO\n{name}=1\n"))
    assert (status, codes(document)) == (0, [("NCCL_ENV_UNKNOWN", severity, name)])
    assert document["findings"][0]["fix"]["text"].startswith(fix)


def test_variables_of_nccl_2_32_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    path = MACHINES / "nccl_conf_of_2_32/etc/nccl.conf"
    status, document = answer(capsys, path)
    assert (status, codes(document), document["files"][0]["kind"]) == (0, [], "environment")


def test_files_of_one_machine_explain_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The environment turns RDMA off; the list of devices shows that there is RDMA. The order does not matter."""
    env, lspci = write(tmp_path, env=ENV, lspci=LSPCI)
    for paths in ((env, lspci), (lspci, env)):
        status, document = answer(capsys, *paths)
        assert status == 1
        assert ("NCCL_ENV_HARMFUL", "critical", "NCCL_IB_DISABLE") in codes(document)


@pytest.mark.parametrize(
    "text",
    [
        ENV,
        ENV.replace("\n", "\0"),
        "".join(f"export {line}\n" for line in ENV.splitlines()),
        "".join(
            f'declare -x {name}="{value}"\n' for name, _, value in (line.partition("=") for line in ENV.splitlines())
        ),
        json.dumps(dict(line.split("=", 1) for line in ENV.splitlines())),
        json.dumps({"host": "n1", "environ": dict(line.split("=", 1) for line in ENV.splitlines())}),
        ENV + "BASH_FUNC_module%%=() {  local _mlredir=1;\n eval $cmd\n}\n",
    ],
    ids=["env", "proc", "export", "declare", "json", "nested", "function"],
)
def test_each_form_of_an_environment_is_read(text: str) -> None:
    result = diagnose_text(text)
    assert [file.kind for file in result.files] == ["environment"]
    assert [found.device for found in result.findings] == ["NCCL_IB_DISABLE"]


@pytest.mark.parametrize(
    "text",
    [
        '{"model_type": "llama", "hidden_size": 4096}',
        "Once upon a time there was a slow rank.\nIt made the others wait.\n",
        "At a loss, he took a step: no loss without gain, step 1.\n" * 9,
        "a = 1\nb = 2\nprint(a + b)\n",
        "\0\1\2\3" * 100,
        "",
    ],
    ids=["model", "prose", "loss", "program", "binary", "empty"],
)
def test_a_file_of_no_known_format_is_unknown(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = answer(capsys, *write(tmp_path, thing=text))
    assert (status, document["verdict"]) == (2, "unknown")
    assert document["files"][0]["kind"] is None and document["files"][0]["unknown"]


EPOCHS = "".join(f"epoch 1 step {n} loss {2 - n / 100:.3f}\n" for n in range(50))
BAR = "".join(f"\r{n}%|###   | {n}/100 [00:0{n % 10}<01:00, 3.2it/s, loss=2.{n}]" for n in range(100))
TRAINER = "".join(f"{{'loss': {3 - n / 10:.1f}, 'learning_rate': 5e-05, 'epoch': {n}}}\n" for n in range(9))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (EPOCHS + "saved to out/\n", ("none of 51 lines", "line 50, `epoch 1 step 49 loss 1.510`")),
        (BAR, ("none of 1 line ", "99/100")),
        (TRAINER, ("none of 9 lines", "line 9, `{'loss': 2.2")),
        (EPOCHS.replace("epoch", "[rank0] epoch"), ("none of 50 lines", "line 50, `[rank0] epoch 1 step 49")),
    ],
    ids=["steps", "bar", "trainer", "ranks"],
)
def test_of_the_output_of_a_healthy_training_is_told_what_is_known(
    text: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = answer(capsys, *write(tmp_path, log=text))
    (file,) = document["files"]
    assert (status, file["kind"]) == (2, "job log" if "rank0" in text else None)
    assert "says that anything failed" in file["unknown"] and all(word in file["unknown"] for word in words), file


def test_a_known_file_beside_an_unknown_one_still_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = answer(capsys, *write(tmp_path, thing="?", log=DMESG))
    assert (status, document["verdict"]) == (1, "fail")
    assert [file["kind"] for file in document["files"]] == [None, "kernel log"]


def test_a_missing_file_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", "missing"]) == 64
    assert "missing" in capsys.readouterr().err


def test_the_text_begins_with_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *map(str, write(tmp_path, log=DMESG))]) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("GPU 0000:9b:00.0 Xid 79") and "(GPU_XID, and 2 more findings)." in " ".join(lines[:2])
    file_text = " ".join(out.split("\n\n")[-1].split())
    assert file_text.startswith("file ") and file_text.endswith(": kernel log")


def test_an_nvidia_smi_file_cannot_name_a_path_outside(tmp_path: Path) -> None:
    """The GPU's address in the file becomes a folder's name."""
    xml = (
        "<?xml version='1.0'?>\n<nvidia_smi_log><driver_version>570.1</driver_version><attached_gpus>1</attached_gpus>"
    )
    target = tmp_path / "outside"
    text = f"{xml}<gpu id='../../../../../../..{target}'></gpu></nvidia_smi_log>"
    assert [file.kind for file in diagnose_text(text).files] == ["nvidia-smi -q -x"]
    assert not target.exists()


@recorded
def test_recorded_hardware_is_judged_as_expected(capsys: pytest.CaptureFixture[str]) -> None:
    """The lspci dump has ACS on at six bridges, none of them between a GPU and a NIC: nothing is wrong with it."""
    data = SHARED / "data"
    status, document = answer(capsys, data / "hgx-h100-lspci-vvv.txt.gz")
    assert (status, codes(document)) == (0, [])
    (facts,) = document["facts"].values()
    assert (facts["devices"], len(facts["gpus"])) == (517, 8)
    status, document = answer(capsys, data / "dmesg-xid-119.log.gz")
    gpu = "GPU 0000:9b:00.0"
    assert (status, codes(document)) == (1, [("GPU_XID", "critical", gpu), ("GPU_LOST", "critical", gpu)])
    status, document = answer(capsys, data / "nvidia-smi-q-8xh100.xml.gz")
    buses = ("04", "05", "0b", "0c", "84", "85", "8b", "8c")
    gpus = "GPU " + ", ".join(f"0000:{bus}:00.0" for bus in buses)
    assert (status, codes(document)) == (0, [("GPU_PERSISTENCE_OFF", "warning", gpus)])


@given(st.text() | st.binary().map(lambda data: data.decode(errors="replace")))
def test_any_text_gets_a_verdict(text: str) -> None:
    assert diagnose_text(text).verdict.value in ("ok", "fail", "unknown")


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True),
        st.text(
            st.characters(exclude_characters="\r\n\0\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\"'", exclude_categories=["Cs"])
        ),
        min_size=1,
    )
)
def test_the_output_of_env_is_parsed_back(environment: dict[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in environment.items())
    assert parse_environment(text) == {name: value.strip() for name, value in environment.items()}
