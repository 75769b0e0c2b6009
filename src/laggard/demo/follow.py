"""Follows the demo: shows its progress, and reads the collector's answers."""

from __future__ import annotations

import json
import shutil
import sys
import time

from laggard.demo.processes import DemoError
from laggard.http.client import NoResponse, get
from laggard.terminal.parts import Line


class ProgressBar:
    """Shows on standard error how far the demo has come: a line that is rewritten in a terminal, else one line for each
    stage."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._last = -1

    def stage(self, text: str) -> None:
        """A stage of the demo begins."""
        self._show(text, "\n")

    def step(self, step: int | None) -> None:
        """The collector's newest step is `step`; None: it has none yet."""
        if step is None and self._terminal:
            self._show("the ranks import torch and DeepSpeed", "")
        if step is None or step == self._last:
            return
        self._last = step
        if self._terminal:
            filled = 30 * (step + 1) // self._steps
            self._show(f"step {step + 1} of {self._steps} [{'#' * filled}{'.' * (30 - filled)}]", "")
            if step + 1 == self._steps:
                sys.stderr.write("\n")

    def _show(self, text: str, end: str) -> None:
        row = f"{time.monotonic() - self._began:5.1f} s  {text}"
        if self._terminal:
            row = "\r\x1b[K" + (row if end else row[: shutil.get_terminal_size().columns - 1])
        sys.stderr.write(row + end)
        sys.stderr.flush()


def fetch_location(url: str) -> dict[str, object]:
    """The collector's location document. Raises DemoError where the collector does not answer with one."""
    try:
        document = json.loads(get(f"{url}/api/v1/location", timeout_seconds=10.0).body)
    except (NoResponse, ValueError) as error:
        raise DemoError(f"the collector does not answer: {error}") from None
    if not isinstance(document, dict):
        raise DemoError("the collector answered with something else than a location")
    return document


def last_step(url: str) -> int | None:
    """The newest step of the collector's verdict; None before the first, or while the collector does not answer."""
    try:
        window = fetch_location(url)["window"]
    except DemoError:
        return None
    step = window["last_step"] if isinstance(window, dict) else None
    return step if isinstance(step, int) else None


def location_lines(location: dict[str, object]) -> list[Line]:
    """The location in words, as `laggard locate` prints it."""
    import msgspec

    from laggard.locate.describe import details, sentence
    from laggard.model import Location

    value = msgspec.convert(location, Location)
    return [Line(sentence(value), value.verdict.value), *(Line(f"  {line}") for line in details(value))]
