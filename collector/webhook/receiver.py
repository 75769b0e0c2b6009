"""The receiver of notifications as the settings name it: its address and secret, each from a file."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from laggard.collector.settings import CollectorSettings
from laggard.collector.webhook.body import FORMS, JSON
from laggard.collector.webhook.signature import key_of
from laggard.errors import UsageError
from laggard.secret_files import refuse_exposed

_MAX_BYTES: Final = 4096


class Receiver(NamedTuple):
    """`place` is its address as it may be told: without the path, which with Slack and those like it is a secret."""

    url: str
    place: str
    key: bytes | None
    form: str


def receiver_of(settings: CollectorSettings) -> Receiver | None:
    """Returns what the settings name, read anew; None where there is none. Raises UsageError where it cannot be
    used."""
    if settings.webhook_format not in FORMS:
        raise UsageError(f"webhook_format is {settings.webhook_format!r}: write {' or '.join(FORMS)}")
    if not settings.webhook_url_file:
        if settings.webhook_secret_file:
            raise UsageError("webhook_secret_file goes with webhook_url_file: give both")
        return None
    if settings.webhook_format == JSON and not settings.webhook_secret_file:
        raise UsageError("webhook_format json is signed: give webhook_secret_file, too")
    url = _read(settings.webhook_url_file, "webhook_url_file")
    key = _key(settings.webhook_secret_file) if settings.webhook_secret_file else None
    return Receiver(url, _place(url, settings.webhook_url_file), key, settings.webhook_format)


def _key(path: str) -> bytes:
    try:
        return key_of(_read(path, "webhook_secret_file"))
    except ValueError as error:
        raise UsageError(f"webhook_secret_file {path} {error}") from None


def _place(url: str, path: str) -> str:
    wrong = UsageError(f"webhook_url_file {path} holds no URL: write https://HOST/PATH, without a login")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    is_plain = url.isascii() and url.isprintable() and " " not in url and "@" not in parts.netloc
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise wrong
    return f"{parts.scheme}://{parts.hostname}" + (f":{port}" if port else "")


def _read(path: str, where: str) -> str:
    refuse_exposed(path, where)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{where} {path} cannot be read: {why}") from None
    if not text:
        raise UsageError(f"{where} {path} is empty")
    return text
