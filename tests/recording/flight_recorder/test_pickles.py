"""The reader of pickles reads what torch writes, executes nothing, and keeps to its bounds whatever the file."""

import gc
import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.recording import pickles
from laggard.recording.pickles import PickleError, read_plain_pickle

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
        | st.tuples(inner, inner)
        | st.tuples()
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=30,
)


@given(VALUES, st.integers(2, 5))
def test_plain_values_read_as_python_reads_them(value: Any, protocol: int) -> None:
    assert read_plain_pickle(pickle.dumps(value, protocol)) == value


class Shell:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_executed(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"entries": [Shell(tmp_path / "owned")]}, protocol)
    with pytest.raises(PickleError):
        read_plain_pickle(data)
    assert not (tmp_path / "owned").exists()
    pickle.loads(data)
    assert (tmp_path / "owned").exists(), "the pickle would have acted"


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"(ios\nsystem\n.",
        b"\x80\x02}}b.",
        b"\x80\x02K\x01\x82\x01.",
        b"Pid\n.",
        b"\x80\x02\x81.",
    ],
)
def test_opcodes_that_import_call_or_build_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(PickleError, match="import or call|damaged"):
        read_plain_pickle(data)


def peak_bytes(data: bytes) -> int:
    """How much memory reading takes at most, whatever it raises."""
    gc.collect()
    tracemalloc.start()
    try:
        read_plain_pickle(data)
    except PickleError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x02X" + struct.pack("<I", 2**31) + b"x", id="text"),
        pytest.param(b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x", id="long-text"),
        pytest.param(b"\x80\x04\x8e" + struct.pack("<Q", 2**40), id="bytes"),
        pytest.param(b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.", id="frame"),
        pytest.param(b"\x80\x02]r\xff\xff\xff\x7f.", id="memo"),
        pytest.param(b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1), id="number"),
    ],
)
def test_what_a_file_announces_reserves_nothing(data: bytes) -> None:
    assert peak_bytes(data) < 100_000


def test_references_to_references_do_not_multiply() -> None:
    """Ten lists of ten references each to the one before, and so on for 200 levels."""
    level = b"]q\x00" + b"".join(b"](" + b"h\x00" * 10 + b"eq\x00" for _ in range(200))
    assert peak_bytes(b"\x80\x02" + level + b".") < 1_000_000


def test_a_key_that_would_take_for_ever_to_hash_is_refused() -> None:
    """A tuple of the same tuple twice, 100 levels deep, as a dictionary's key: Python's Unpickler would hash 2^100."""
    with pytest.raises(PickleError, match="no text"):
        read_plain_pickle(b"\x80\x04}(K\x01K\x01\x86" + b"\x94h\x00\x86" * 100 + b"Nu.")


def test_nesting_to_any_depth_neither_recurses_nor_crashes() -> None:
    depth = 500_000
    value = read_plain_pickle(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    levels = 1
    while value:
        (value,) = value
        levels += 1
    assert levels == depth
    gc.collect()  # frees the outer levels: that must not recurse either


def test_a_flood_of_values_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_OPCODES", 1000)
    monkeypatch.setattr(pickles, "MAX_CONTAINERS", 100)
    with pytest.raises(PickleError, match="1,000 opcodes"):
        read_plain_pickle(b"\x80\x02" + b"N0" * 1000 + b".")
    with pytest.raises(PickleError, match="100 lists"):
        read_plain_pickle(b"\x80\x02" + b"]0" * 200 + b".")


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for attempt in (data, b"\x80\x02" + data, b"\x80\x02}(X\x01\x00\x00\x00a]q\x00(" + data):
        try:
            read_plain_pickle(attempt)
        except PickleError as error:
            assert "\n" not in str(error)


@given(VALUES, st.data())
@settings(max_examples=300)
def test_damaged_pickles_are_read_or_refused(value: Any, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(value, 2))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_plain_pickle(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except PickleError as error:
        assert "\n" not in str(error)
