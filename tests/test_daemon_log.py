"""The log of the daemons: how often one kind of failure is told, and in which form."""

import json
import logging
import subprocess
import sys

import pytest

from laggard.kit.daemon import REPEAT_SECONDS, OncePerMinute

SCRIPT = """
import logging
from laggard.kit.daemon import log_to_stderr
log_to_stderr("{level}", "{form}")
log = logging.getLogger("laggard.x")
log.info("hello %s", "there")
log.debug("fine")
for number in range(1000):
    try:
        raise OSError(24, "Too many open files")
    except OSError:
        logging.getLogger("asyncio").error("accept failed\\nsocket: %d", number, exc_info=True)
        log.warning("ignoring %d", number)
"""


def said(level: str, form: str) -> list[str]:
    script = SCRIPT.format(level=level, form=form)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    ).stderr.splitlines()


def test_a_thousand_failures_of_one_kind_are_one_line() -> None:
    lines = said("info", "text")
    assert len(lines) == 3 and lines[0].endswith("INFO hello there"), lines
    assert lines[1].endswith("ERROR accept failed: OSError(24, 'Too many open files')")
    assert lines[2].endswith("WARNING ignoring 0")


def test_debug_tells_all() -> None:
    assert sum("ignoring" in line for line in said("debug", "text")) == 1000


def test_json_is_one_object_a_line() -> None:
    lines = [json.loads(line) for line in said("warning", "json")]
    assert [(line["level"], line["logger"], line["message"]) for line in lines] == [
        ("error", "asyncio", "accept failed\nsocket: 0"),
        ("warning", "laggard.x", "ignoring 0"),
    ]
    assert "Too many open files" in lines[0]["traceback"] and lines[0]["time"].endswith("+00:00")


def test_after_a_minute_the_number_of_those_left_out_is_told() -> None:
    now = [0.0]
    once = OncePerMinute(lambda: now[0])

    def passes(text: str, *values: object) -> str | None:
        record = logging.LogRecord("laggard", logging.WARNING, "", 0, text, values, None)
        return record.getMessage() if once.filter(record) else None

    assert passes("no answer from %s", "n1") == "no answer from n1"
    assert passes("no answer from %s", "n2") is None
    assert passes("the disk of %s is full", "n1") == "the disk of n1 is full"
    now[0] = REPEAT_SECONDS
    assert passes("no answer from %s", "n3") == "no answer from n3 (1 more of this kind since the last)"


@pytest.mark.parametrize("values", [range(5000)])
def test_texts_without_end_do_not_fill_the_memory(values: range) -> None:
    once = OncePerMinute()
    for value in values:
        once.filter(logging.LogRecord("laggard", logging.WARNING, "", 0, f"kind {value}", (), None))
    assert len(once._kinds) <= 1024
