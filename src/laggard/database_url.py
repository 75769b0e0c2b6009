"""URLs of PostgreSQL in place of a file's path, and those in a file of their own. Standard library only."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from laggard.errors import UsageError
from laggard.secret_file import warn_of_exposed

_SCHEMES: Final = ("postgresql://", "postgres://")
"""Those of libpq: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS"""

_MAX_BYTES: Final = 4096

_SECRETS: Final = frozenset(("password", "sslpassword"))


def is_database_url(place: str) -> bool:
    return place.startswith(_SCHEMES)


def refusal(url: str) -> str:
    """The reason why it is not taken; empty where it is. A password in it would be read by everybody who reads the
    command line, the settings or a log."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "is no URL: write postgresql://HOST/NAME"
    login = parts.netloc.rpartition("@")[0]
    if ":" in login or any(name.lower() in _SECRETS for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        return (
            "is given with a password: put that into a file of mode 0600 and name it, as passfile=FILE in the URL or "
            "as PGPASSFILE"
        )
    return ""


class Login(NamedTuple):
    """A URL without its password, and the password; empty where it has none."""

    url: str
    password: str


def read_url(path: str, setting: str) -> Login:
    """The URL in the only line of the file that `setting` names, as an operator of Kubernetes puts it into a Secret.
    Raises UsageError, in whose text nothing of the file is."""
    warn_of_exposed(path, setting)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1).strip()
    except OSError as error:
        raise UsageError(f"cannot read {setting} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{setting} {path} is not text") from None
    if not is_database_url(text) or len(text) > _MAX_BYTES or not text.isprintable() or " " in text:
        raise UsageError(f"{setting} {path} has to hold one line, postgresql://USER:PASSWORD@HOST/NAME")
    try:
        return _split(text)
    except ValueError:
        raise UsageError(
            f"{setting} {path} holds no URL that can be read: are signs of the password written as %XX?"
        ) from None


def _split(url: str) -> Login:
    """Raises ValueError."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    bare = urlunsplit(parts._replace(netloc=f"{user}{at}{host}"))
    return Login(bare if bare.startswith(_SCHEMES) else url, unquote(password))
