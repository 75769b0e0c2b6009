"""URLs of PostgreSQL in place of a file's path. Standard library only."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

_SCHEMES: Final = ("postgresql://", "postgres://")
"""Those of libpq: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS"""

_SECRETS: Final = frozenset(("password", "sslpassword"))


def is_database_url(place: str) -> bool:
    return place.startswith(_SCHEMES)


def with_secret(url: str) -> bool:
    """Whether a password stands in it, where everybody reads it who reads the command line, the settings or a log."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is not closed; libpq refuses it, too
        return True
    login = parts.netloc.rpartition("@")[0]
    return ":" in login or any(unquote(name).lower() in _SECRETS for name, _ in parse_qsl(parts.query, True))
