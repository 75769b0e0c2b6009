"""The reader of events: it reads what json reads, in pieces of any size, and no file makes it crash or grow."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.recording import kineto_stream as stream
from laggard.recording.kineto_stream import NoTrace, TraceStream

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=4), max_size=6)


def read(path: Path) -> tuple[list[Any], TraceStream]:
    found = TraceStream(path)
    return list(found.events()), found


@given(EVENTS, st.dictionaries(st.text(min_size=1, max_size=6), JSON, max_size=3), st.integers(1, 40), st.booleans())
def test_pieces_of_any_size_make_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], head: dict[str, Any], chunk: int, indented: bool
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    head.pop("traceEvents", None)
    path.write_text(json.dumps({**head, "traceEvents": events, "end": 1}, indent=2 if indented else None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", chunk)
        found, reader = read(path)
    assert found == events and reader.head == {**head, "end": 1}
    assert reader.damaged == 0 and reader.cut_off == ""


@given(st.binary(max_size=120), st.integers(1, 30))
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, chunk: int) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", chunk)
        for content in (data, b'{"traceEvents": [' + data, b'{"traceEvents": [{"ph": "X"}, ' + data + b', {"a": 1}]}'):
            path.write_bytes(content)
            try:
                read(path)
            except NoTrace as error:
                assert "\n" not in str(error)


def peak_bytes(path: Path) -> int:
    tracemalloc.start()
    try:
        for _ in TraceStream(path).events():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1 << 16)
    one = json.dumps({"ph": "X", "name": "n" * 80, "args": {"External id": 1}}) + ",\n"
    sizes = []
    for count in (5_000, 50_000):
        path = tmp_path / str(count)
        path.write_text('{"traceEvents": [' + one * count + "{}]}")
        sizes.append(peak_bytes(path))
    assert sizes[1] < 2 * sizes[0]


def test_an_event_without_end_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(stream, "MAX_EVENT_CHARS", 1 << 16)
    path = tmp_path / "t"
    path.write_text('{"traceEvents": [{"a": 1}, {"name": "' + "x" * 3_000_000)
    events, found = read(path)
    assert events == [{"a": 1}] and found.damaged == 1 and found.cut_off


@given(EVENTS, st.integers(1, 60), st.data())
def test_packed_traces_are_read_in_one_or_several_members(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], chunk: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    text = json.dumps({"traceEvents": events}).encode()
    middle = data.draw(st.integers(0, len(text)))
    path.write_bytes(gzip.compress(text[:middle]) + gzip.compress(text[middle:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", chunk)
        assert read(path)[0] == events
