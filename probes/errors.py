"""The errors that a probe raises where it cannot judge."""

from __future__ import annotations


class NotApplicable(Exception):
    """The machine does not have what the probe judges. This needs evidence: a list that was read, and does not hold
    it."""


class Unknown(Exception):
    """The probe cannot judge, for the reason in the message. Its verdict is then `unknown`, never `ok`."""


class NotFound(Unknown):
    """There is no such file. That alone proves nothing: a driver that is not loaded leaves no file either."""
