"""What a probe raises where it has no answer."""

from __future__ import annotations


class NotApplicable(Exception):
    """What the probe judges is not on this machine. Needs evidence: a list that was read and does not hold it."""


class Unknown(Exception):
    """The probe cannot tell. Never an excuse for `ok`."""


class NotFound(Unknown):
    """There is no such file. Alone it proves nothing: a driver that is not loaded leaves no file either."""
