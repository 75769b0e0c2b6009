"""Files of tokens, which let their holder do something: one token, or two while one takes the place of the other.

Who sends, sends the first line's; who checks, accepts either. So a token is replaced without a moment in which one side
is refused (docs/operate.md): both are known everywhere before the new one is sent, and until the old one is sent by
nobody. A daemon reads the file anew when it changes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from laggard.errors import UsageError
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


class _Stamp(NamedTuple):
    """The stamp of a file that changes when it is written or replaced, or gets another mode or owner."""

    modified: int
    changed: int
    inode: int
    size: int


class TokenFile:
    """The tokens of a daemon's file, read anew when it changes. While it cannot be used, what it said last holds, and
    the log says so once."""

    def __init__(self, path: str, where: str) -> None:
        """`where`: the setting that names the file; `path`: empty where it names none. Raises UsageError."""
        self.path, self._where = path, where
        self._lock = threading.Lock()
        self._stamp = _stamp(path) if path else None
        self._tokens = read_token_file(path, where) if path else ()

    def __bool__(self) -> bool:
        """Whether there is a file, and with it a token."""
        return bool(self.path)

    def accepted(self) -> tuple[str, ...]:
        """Returns the tokens that count when somebody else sends one, or signs with one; none where no file is set."""
        if not self.path:
            return ()
        with self._lock:
            stamp = _stamp(self.path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._read_anew()
            return self._tokens

    def sent(self) -> str:
        """Returns the token to send or to sign with; empty where no file is set."""
        return next(iter(self.accepted()), "")

    def _read_anew(self) -> None:
        import logging  # here: the gate, which has to start fast, reads no file anew

        log = logging.getLogger("laggard.secrets")
        try:
            self._tokens = read_token_file(self.path, self._where)
        except UsageError as error:
            log.error("the former token stays in use: %s", error)
            return
        count = "two tokens" if len(self._tokens) > 1 else "one token"
        log.info("%s is read anew from %s: %s", self._where, self.path, count)


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
