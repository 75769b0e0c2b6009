"""A part of a file: the output of one command of a session, of one machine of many, a section of a report."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_PARTS: Final = 4096
"""The most parts that one text is cut into. A cluster has as many machines."""


class Part(NamedTuple):
    name: str
    """The command, the machine or the section's head, as the file has it."""

    host: str
    """The machine that it comes from; empty where the file does not name it."""

    text: str
