"""Files that hold several outputs: archives, bug reports, sessions, many machines."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

from laggard.diagnose import archive as archive_module
from laggard.diagnose.archive import Archive
from laggard.diagnose.command import diagnose
from laggard.diagnose.input_file import InputFile
from laggard.diagnose.parts import split_machines, split_session
from laggard.wire.diagnosis import Diagnosis

LOST = "Unable to determine the device handle for GPU0000:B1:00.0: Unknown Error\n"
XID = "[12345.678901] NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    "prompt",
    ["ada@n1:~$ {}", "(base) ada@n1:~/x$ {}", "[root@n1 ~]# {}", "root@n1:/# {}", "n1:~ # {}", "$ {}", "# {}", "+ {}"],
)
def test_each_form_of_a_prompt_is_known(prompt: str) -> None:
    (part,) = split_session(f"{prompt.format('nvidia-smi -q')}\nwhat it says\n")
    assert (part.name, part.text) == ("nvidia-smi -q", "what it says\n")
    assert part.host == ("n1" if "n1" in prompt else "")


@pytest.mark.parametrize(
    "text",
    ["# a comment\nNCCL_DEBUG=INFO\n", "price: 5 $ each\n", "mail ada@n1.org # her address\n", "a > b\n", "+ 1\n- 2\n"],
)
def test_what_only_looks_like_a_prompt_is_none(text: str) -> None:
    assert split_session(text) == ()


def test_the_outputs_of_a_session_are_judged_each_by_its_format() -> None:
    result = diagnose_text(f"ada@n1:~$ nvidia-smi\n{LOST}ada@n1:~$ dmesg | tail -1\n{XID}ada@n1:~$ echo hello\nhello\n")
    assert [(file.path, file.kind) for file in result.files] == [
        ("log: nvidia-smi", "nvidia-smi"),
        ("log: dmesg | tail -1", "kernel log"),
        ("log: echo hello", None),
    ]
    assert [file.first_line for file in result.files] == [2, 4, 6]
    assert {found.evidence["host"] for found in result.findings} == {"n1"}


def test_a_jobs_log_with_prompts_is_one_file() -> None:
    result = diagnose_text("$ python train.py\n[rank0]: step 1 loss 2.0\n[rank0]: ValueError: no\n")
    assert [file.path for file in result.files] == ["log"]


def test_heads_of_ranks_are_no_machines() -> None:
    assert split_machines("Traceback: x\nValueError: no\nTypeError: no\nRuntimeError: no\n") == ()


REPORT = """
____________________________________________

Start of NVIDIA bug report log file.  Please include this file.

uname: Linux hgx-31 5.15.0-122-generic #132-Ubuntu SMP x86_64
____________________________________________

/usr/bin/nvidia-smi --query

{}
____________________________________________

*** /proc/driver/nvidia/./version
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024
____________________________________________

/bin/dmesg

{}
"""


def test_a_bug_report_is_judged_by_its_sections(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-bug-report.log.gz"
    path.write_bytes(gzip.compress(REPORT.format(LOST, XID).encode()))
    result = diagnose([InputFile(str(path))])
    assert {("GPU_LOST", "GPU 0000:b1:00.0"), ("GPU_XID", "GPU 0000:9b:00.0")} <= codes(result)
    assert {found.evidence.get("host") for found in result.findings} == {"hgx-31"}


def codes(result: Diagnosis) -> set[tuple[str, str]]:
    return {(found.code, found.device) for found in result.findings}


def packed(members: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_the_files_of_an_archive_are_judged(tmp_path: Path, form: int, pack: object) -> None:
    assert callable(pack)
    name = "must-gather/" + "long-name-" * (9 if form == tarfile.USTAR_FORMAT else 30) + "/smi.txt"
    members = {"a/timestamp": b"2025-07-19\n", name: LOST.encode(), "k.log.gz": gzip.compress(XID.encode())}
    path = tmp_path / "must-gather"
    path.write_bytes(pack(packed(members, form)))
    result = diagnose([InputFile(str(path))])
    assert {("GPU_LOST", "GPU 0000:b1:00.0"), ("GPU_XID", "GPU 0000:9b:00.0")} <= codes(result)
    assert [file.path for file in result.files] == [f"{path}: a/timestamp", f"{path}: {name}", f"{path}: k.log.gz"]


def test_an_archive_without_anything_known_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(packed({"a": b"hello\n", "b": b"world\n"}))
    *members, file = diagnose([InputFile(str(path))]).files
    assert [(each.kind, each.unknown) for each in members] == [(None, "")] * 2
    assert file.unknown == "is a tar archive: none of its 2 files is of a known format"


def test_an_archive_larger_than_what_is_kept_of_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(packed({"a": b"x\n" * (10 << 20), "smi": LOST.encode(), "b": b"y\n" * (15 << 20)}))
    assert ("GPU_LOST", "GPU 0000:b1:00.0") in codes(diagnose([InputFile(str(path))]))


def test_links_devices_and_names_that_lead_away_are_passed_over() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (
            ("l", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("d", tarfile.CHRTYPE),
            ("f", tarfile.DIRTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        for name in ("/etc/passwd", "../up", "a/../../b", "good"):
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"x\n"))
    assert names(buffer.getvalue())[0] == ["good"]


def names(data: bytes) -> tuple[list[str], str]:
    archive = Archive(io.BytesIO(data))
    return [member.name for member in archive.members()], archive.problem


def test_an_archive_of_very_many_members_is_read_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 5)
    found, problem = names(packed({f"f{n}": b"x" for n in range(9)}))
    assert len(found) == 5 and "more than 5 members" in problem


def test_an_archive_of_very_many_bytes_is_read_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_ARCHIVE_BYTES", 1 << 20)
    found, problem = names(packed({f"f{n}": bytes(3 << 20) for n in range(9)}))
    assert found == ["f0"] and problem.startswith("only the first")


class Endless(io.RawIOBase):
    """A header that says eight gigabytes of long name, and as many bytes as are asked for."""

    def __init__(self) -> None:
        info = tarfile.TarInfo("x")
        info.type, info.size = b"L", (1 << 33) - 1
        self.begin = info.tobuf(tarfile.GNU_FORMAT)
        self.largest = 0

    def read(self, size: int = -1) -> bytes:
        self.largest = max(self.largest, size)
        if self.begin:
            data, self.begin = self.begin[:size], self.begin[size:]
            return data
        return b"a" * size


def test_a_name_of_any_length_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_ARCHIVE_BYTES", 8 << 20)
    source = Endless()
    assert list(Archive(source).members()) == [] and source.largest <= 1 << 20


@given(st.integers(0, 4096), st.binary(max_size=40))
def test_an_archive_that_is_cut_or_damaged_is_read_as_far_as_it_goes(place: int, noise: bytes) -> None:
    data = packed({"a": b"x" * 700, "b": b"y" * 700})
    found, problem = names(data[:place] + noise)
    assert set(found) <= {"a", "b"} and (problem or place == 0 or len(found) == 2 or not noise or place >= 1024)
