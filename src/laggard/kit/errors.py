"""The error for bad input, and its exit status. Standard library only."""

from typing import Final

EXIT_USAGE: Final = 64
"""Wrong flags, a missing file, a busy port: the command could not start (sysexits.h, EX_USAGE)."""


class UsageError(Exception):
    """Bad input from the user. Its text is one line that says what is wrong and what to do."""
