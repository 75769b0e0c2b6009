"""What the demo shows while it runs, and what it asks the collector."""

from __future__ import annotations

import json
import sys
import time
import urllib.request

from laggard.demo.processes import DemoError


class Progress:
    """A line on stderr: rewritten in a terminal, one for each stage elsewhere."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._last = -1

    def stage(self, text: str) -> None:
        self._show(text, "\n")

    def step(self, step: int | None) -> None:
        if step is None or step == self._last:
            return
        self._last = step
        if self._terminal:
            filled = 30 * (step + 1) // self._steps
            self._show(f"step {step + 1} of {self._steps} [{'#' * filled}{'.' * (30 - filled)}]", "")
            if step + 1 == self._steps:
                sys.stderr.write("\n")

    def _show(self, text: str, end: str) -> None:
        start = "\r" if self._terminal else ""
        sys.stderr.write(f"{start}{time.monotonic() - self._began:5.1f} s  {text:<72}".rstrip() + end)
        sys.stderr.flush()


def location_of(url: str) -> dict[str, object]:
    """The collector's location document."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/location", timeout=10) as answer:
            document = json.load(answer)
    except (OSError, ValueError) as error:
        raise DemoError(f"the collector does not answer: {error}") from None
    if not isinstance(document, dict):
        raise DemoError("the collector answers something else than a location")
    return document


def last_step(url: str) -> int | None:
    """The newest step that the collector has judged by; None before the first, or while it is busy."""
    try:
        window = location_of(url)["window"]
    except DemoError:
        return None
    step = window["last_step"] if isinstance(window, dict) else None
    return step if isinstance(step, int) else None


def sentence_of(location: dict[str, object]) -> list[str]:
    """The location in words, as `laggard locate` says it."""
    import msgspec

    from laggard.collector.describe import details, sentence
    from laggard.model import Location

    value = msgspec.convert(location, Location)
    return [sentence(value), *(f"  {line}" for line in details(value))]
