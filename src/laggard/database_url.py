"""URLs of PostgreSQL in place of a file's path. Standard library only."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlsplit

_SCHEMES: Final = ("postgresql://", "postgres://")
"""Those of libpq: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS"""

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
