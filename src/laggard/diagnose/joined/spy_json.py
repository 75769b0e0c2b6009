"""Threads of `py-spy dump --json`: a JSON list of threads, each with its `pid`, `thread_name`, `os_thread_id` and
`frames`, whose `name`, `short_filename`, `filename` and `line` are those of the text. Several lists may follow one
another. Source: py-spy 0.3 and 0.4, src/stack_trace.rs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from laggard.diagnose.joined.dump_lines import Frame

_MAX_THREADS: Final = 4096
_MAX_TEXT: Final = 300


class SpyThread(NamedTuple):
    pid: int | None
    name: str
    tid: int | None
    frames: tuple[Frame, ...]


def spy_threads(text: str) -> tuple[SpyThread, ...]:
    """Returns the threads; none where the text is nothing of py-spy's JSON."""
    if text.lstrip()[:1] != "[" or '"frames"' not in text or '"thread_id"' not in text:
        return ()
    found: list[SpyThread] = []
    cursor = _Cursor(text)
    for thread in _objects(text):
        if len(found) >= _MAX_THREADS:
            break
        listed = thread.get("frames")
        frames = (
            tuple(cursor.frame(each) for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()
        )
        name = thread.get("thread_name")
        found.append(
            SpyThread(_number(thread, "pid"), str(name or "")[:_MAX_TEXT], _number(thread, "os_thread_id"), frames)
        )
    return tuple(found)


class _Cursor:
    """Finds the lines of the frames again, in the order in which they stand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def frame(self, values: dict[str, Any]) -> Frame:
        name = str(values.get("name") or "")
        at = self._text.find(json.dumps(name, ensure_ascii=False), self._at)
        self._at = at + 1 if at >= 0 else self._at
        start = self._text.rfind("\n", 0, max(at, 0)) + 1
        end = self._text.find("\n", start)
        line = self._text[start : end if end >= 0 else len(self._text)].strip()
        file = str(values.get("short_filename") or values.get("filename") or "")
        quote = line if len(line) < _MAX_TEXT else json.dumps(name, ensure_ascii=False)
        return Frame(name[:_MAX_TEXT], file[:_MAX_TEXT], _number(values, "line") or None, quote, max(at, 0))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    at = 0
    while (start := text.find("[", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        yield from (each for each in value if isinstance(each, dict) and "thread_id" in each)


def _number(values: dict[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None
