"""Files of tokens, which let their holder do something: one token, or two while one takes the place of the other.

Who sends, sends the first line's; who checks, accepts either. So a token is replaced without a moment in which one side
is refused (docs/operate.md): both are known everywhere before the new one is sent, and until the old one is sent by
nobody. A daemon reads the file anew when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from laggard.errors import UsageError
from laggard.read_anew import ReadAnew
from laggard.secret_file import refuse_exposed

MAX_TOKENS: Final = 2
"""The most tokens of a file: the one that is replaced, and the one that takes its place."""

MAX_TOKEN_BYTES: Final = 4096
"""The most characters of one token."""

_MAX_FILE: Final = MAX_TOKENS * (MAX_TOKEN_BYTES + 2)


def tokens_of(text: str) -> tuple[str, ...]:
    """Returns the tokens of a file's text, one a line, without blank lines: the first is the one that is sent. Raises
    ValueError that says what is wrong."""
    tokens = tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"has {len(tokens)} lines: {MAX_TOKENS} tokens at most, the one to send first")
    if any(len(token) > MAX_TOKEN_BYTES for token in tokens):
        raise ValueError(f"has a line of more than {MAX_TOKEN_BYTES} characters, which is no token")
    return tokens


def read_token_file(path: str, where: str) -> tuple[str, ...]:
    """Returns one token or two. `where`: the flag or setting that names the file. Raises UsageError, also where every
    user can read it: a token lets its holder start rings on the nodes."""
    refuse_exposed(path, where)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} {path} cannot be read: {error}") from None
    if len(text) > _MAX_FILE:
        raise UsageError(f"{where} {path} has more than {_MAX_FILE} characters, which is no file of tokens")
    try:
        tokens = tokens_of(text)
    except ValueError as error:
        raise UsageError(f"{where} {path} {error}") from None
    if not tokens:
        raise UsageError(f"{where} {path} is empty")
    return tokens


def proved_by(tokens: Sequence[str], proves: Callable[[str], bool]) -> str | None:
    """Returns the token for which `proves` holds; None: for none. All are tried, so that the time that this takes does
    not tell which it was."""
    proved = [token for token in tokens if proves(token)]
    return proved[0] if proved else None


class TokenFile:
    """The tokens of a daemon's file, read anew when it changes. While it cannot be used, what it said last holds, and
    the log says so once."""

    def __init__(self, path: str, where: str) -> None:
        """`where`: the setting that names the file; `path`: empty where it names none. Raises UsageError."""
        self.path = path

        def read() -> tuple[str, ...]:
            return read_token_file(path, where)

        def told(tokens: tuple[str, ...]) -> str:
            count = "two tokens" if len(tokens) > 1 else "one token"
            return f"{where} is read anew from {path}: {count}"

        self._file = ReadAnew(path, read, "token", told) if path else None

    def __bool__(self) -> bool:
        """Whether there is a file, and with it a token."""
        return bool(self.path)

    def accepted(self) -> tuple[str, ...]:
        """Returns the tokens that count when somebody else sends one, or signs with one; none where no file is set."""
        return self._file.value() if self._file else ()

    def sent(self) -> str:
        """Returns the token to send or to sign with; empty where no file is set."""
        return next(iter(self.accepted()), "")
