"""Files with secrets: read bounded, refused or warned of if every user can read them, and read anew when they change.

A group that can read one is not judged: root's file of mode 0640 is how a daemon that is not root gets its secret.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from laggard.kit.errors import UsageError

Value = TypeVar("Value")

MAX_TOKENS: Final = 2
"""The most tokens of a file: the one that is replaced, and the one that takes its place."""

MAX_TOKEN_BYTES: Final = 4096
"""The most characters of one token."""

_Stamp: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


def exposure(path: str) -> str:
    """The fault, and what to do about it; empty if no stranger reaches the file, or if it is not there."""
    try:
        place = os.path.realpath(path, strict=True)
        mode = os.stat(place).st_mode
        reachable = all(os.stat(folder).st_mode & stat.S_IXOTH for folder in _folders(place))
    except OSError:  # who reads it says what is wrong
        return ""
    if not reachable or not mode & (stat.S_IROTH | stat.S_IWOTH) or not stat.S_ISREG(mode):
        return ""
    can = "read" if mode & stat.S_IROTH else "change"
    return f"is for every user of this machine to {can}: chmod o= {place}"


def _folders(path: str) -> list[str]:
    folders = [os.path.dirname(path)]
    while folders[-1] != os.path.dirname(folders[-1]):
        folders.append(os.path.dirname(folders[-1]))
    return folders


def refuse_exposed(path: str, where: str) -> None:
    """Refuses an exposed file of a secret that lets whoever has it change something. `where`: the flag or setting that
    names the file. Raises UsageError."""
    if text := exposure(path):
        raise UsageError(f"{where} {path} {text}")


def warn_of_exposed(path: str, where: str) -> None:
    """Warns of an exposed file of a secret without which a daemon would no longer see: Kubernetes, for one, mounts them
    readable for all, where no other user is."""
    import logging  # here: the gate, which has to start fast, warns of nothing

    if text := exposure(path):
        logging.getLogger("laggard.secrets").warning("%s %s %s", where, path, text)


def read_secret(path: str, where: str, most: int = MAX_TOKEN_BYTES) -> str:
    """The text of a file without the spaces around it, of at most `most` characters. Raises UsageError, in whose text
    nothing of the file is."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{where} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where} {path} cannot be read: it is not text") from None
    if len(text) > most:
        raise UsageError(f"{where} {path} has more than {most} characters, which is too long")
    if not text.strip():
        raise UsageError(f"{where} {path} is empty")
    return text.strip()


class ReadAnew(Generic[Value]):
    """A daemon's value of a few small files, which are read anew when one changes. To be asked by any thread.

    A file that is gone, or only half there, for a moment is no end of what it said: that holds, and the log says so
    once.
    """

    def __init__(
        self, paths: str | Sequence[str], read: Callable[[], Value], what: str, told: Callable[[Value], str]
    ) -> None:
        """`read` raises UsageError if the files cannot be used; so does this. `what` they have, as `token stays`,
        and what is `told` of a new value go into the log: neither may show a secret."""
        self._paths = (paths,) if isinstance(paths, str) else tuple(paths)
        self._read, self._what, self._told = read, what, told
        self._lock = threading.Lock()
        self._stamp = _stamp(self._paths)
        self._value = read()
        self._complaint = ""

    def value(self) -> Value:
        """Returns what the files say now, or what they said last."""
        with self._lock:
            stamp = _stamp(self._paths)
            if stamp != self._stamp:
                self._look(stamp)
            return self._value

    def _look(self, stamp: _Stamp) -> None:
        """Reads the files. If they cannot be used they are read again when they are asked for next: what was wrong need
        not be the file (too many are open), and would then leave no mark on it."""
        import logging  # here: the gate, which has to start fast, reads no file anew

        log = logging.getLogger("laggard.secrets")
        try:
            value = self._read()
        except UsageError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the former %s in use: %s", self._what, error)
            return
        self._value, self._stamp, self._complaint = value, stamp, ""
        log.info("%s", self._told(value))


def _stamp(paths: Sequence[str]) -> _Stamp:
    """Differs once a file was written, was replaced, also by a link (as Kubernetes replaces secrets), or got another
    mode or owner."""
    return tuple(map(_stamp_of, paths))


def _stamp_of(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


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
    """Returns one token or two. `where`: the flag or setting that names the file. Raises UsageError, also if every user
    can read it: a token lets its holder start rings on the nodes.

    Who sends, sends the first line's; who checks, accepts either. So a token is replaced without a moment in which one
    side is refused (docs/operate.md): both are known everywhere before the new one is sent, and until the old one is
    sent by nobody.
    """
    refuse_exposed(path, where)
    try:
        return tokens_of(read_secret(path, where, MAX_TOKENS * (MAX_TOKEN_BYTES + 2)))
    except ValueError as error:
        raise UsageError(f"{where} {path} {error}") from None


def proved_by(tokens: Sequence[str], proves: Callable[[str], bool]) -> str | None:
    """Returns the token for which `proves` holds; None: for none. All are tried, so that the time that this takes does
    not tell which it was."""
    proved = [token for token in tokens if proves(token)]
    return proved[0] if proved else None


class TokenFile:
    """The tokens of a daemon's file, read anew when it changes. While it cannot be used, what it said last holds, and
    the log says so once."""

    def __init__(self, path: str, where: str) -> None:
        """`where`: the setting that names the file; `path`: empty if it names none. Raises UsageError."""
        self.path = path

        def told(tokens: tuple[str, ...]) -> str:
            count = "two tokens" if len(tokens) > 1 else "one token"
            return f"{where} is read anew from {path}: {count}"

        self._file = ReadAnew(path, lambda: read_token_file(path, where), "token stays", told) if path else None

    def __bool__(self) -> bool:
        """Whether there is a file, and with it a token."""
        return bool(self.path)

    def accepted(self) -> tuple[str, ...]:
        """Returns the tokens that count when somebody else sends one, or signs with one; none if no file is set."""
        return self._file.value() if self._file else ()

    def sent(self) -> str:
        """Returns the token to send or to sign with; empty if no file is set."""
        return next(iter(self.accepted()), "")
