"""The URL of a PostgreSQL in a file of its own, a secret: the URL without its password, and the password."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from laggard.database_url import is_database_url
from laggard.errors import UsageError
from laggard.secret_files import read_secret, warn_of_exposed


class Login(NamedTuple):
    """A URL without its password, and the password; empty where it has none."""

    url: str
    password: str


def read_url(path: str, setting: str) -> Login:
    """The URL in the only line of the file that `setting` names, as an operator of Kubernetes puts it into a Secret.
    Raises UsageError, in whose text nothing of the file is."""
    warn_of_exposed(path, setting)
    text = read_secret(path, setting)
    if not is_database_url(text) or not text.isprintable() or " " in text:
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
    return Login(bare if is_database_url(bare) else url, unquote(password))
