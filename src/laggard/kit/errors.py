"""The errors that a user is told of in one line, and their exit statuses. Standard library only."""

from typing import ClassVar, Final

EXIT_USAGE: Final = 64
"""Wrong flags, a missing file, a busy port: the command could not start (sysexits.h, EX_USAGE)."""

EXIT_UNKNOWN: Final = 2
"""The command cannot tell: what it would ask is away, or not installed."""


class UsageError(Exception):
    """Bad input from the user. Its text is one line that says what is wrong and what to do."""

    status: ClassVar[int] = EXIT_USAGE


class CannotTell(UsageError):
    """Nothing is wrong with the words, but the world lacks what they need, as a collector that answers."""

    status = EXIT_UNKNOWN
