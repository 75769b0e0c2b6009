"""Dashboards sent to a running Grafana, over its HTTP API."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from laggard.address import without_login
from laggard.dashboards.panel import Json
from laggard.errors import UsageError
from laggard.http.tls import tls_failure
from laggard.text.words import printable_line
from laggard.wire import WireError, decode

if TYPE_CHECKING:
    import httpx

_TIMEOUT_SECONDS: Final = 30.0
_FOLDER_UID: Final = "laggard"

Answered = TypeVar("Answered")


class _Folder(Struct, frozen=True):
    uid: str
    title: str


class _Pushed(Struct, frozen=True):
    url: str = ""


class _Refusal(Struct, frozen=True):
    message: str = ""


def push_dashboards(url: str, token: str, folder: str, dashboards: Sequence[Json]) -> list[str]:
    """Puts `dashboards` into the folder titled `folder`, in place of those with the same uid, and makes the folder
    where it is missing. Returns the dashboards' paths. Raises UsageError where Grafana refuses or does not answer."""
    try:
        import httpx
    except ImportError:
        raise UsageError("httpx is not installed; run: pip install 'laggard[grafana]'") from None
    try:
        with _client(url, token) as grafana:
            folders = _answer(grafana.get("folders"), list[_Folder])
            uid = next((each.uid for each in folders if each.title == folder), None)
            if uid is None:
                uid = _answer(grafana.post("folders", json={"title": folder, "uid": _FOLDER_UID}), _Folder).uid
            return [_push(grafana, uid, dashboard) for dashboard in dashboards]
    except httpx.TimeoutException:
        why = f"Grafana did not answer within {_TIMEOUT_SECONDS:g} s"
    except httpx.HTTPError as error:
        said = tls_failure(error) or printable_line(str(error), 200) or type(error).__name__
        why = f"Grafana cannot be reached: {said}"
    except _Refused as error:
        why = str(error)
    raise UsageError(f"{without_login(url)}: {why}")


class _Refused(Exception):
    """What answers does not do what it was asked. The text says why."""


def _push(grafana: httpx.Client, folder_uid: str, dashboard: Json) -> str:
    body = {"dashboard": dashboard, "folderUid": folder_uid, "overwrite": True, "message": "laggard dashboards push"}
    return printable_line(_answer(grafana.post("dashboards/db", json=body), _Pushed).url)


def _client(url: str, token: str) -> httpx.Client:
    """It follows no redirect: the token is for the server that was named. Raises UsageError where `url` is none."""
    import httpx

    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.username is None and parts.port != 0
        if parts.scheme not in ("http", "https") or not named:
            raise ValueError
        api = httpx.URL(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/api/")
    except (ValueError, httpx.InvalidURL):
        text = f"{without_login(url)!r} is no URL of a Grafana; give one such as https://grafana.example"
        raise UsageError(text) from None
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=api, headers=headers, timeout=_TIMEOUT_SECONDS, verify=ssl.create_default_context())


def _answer(answer: httpx.Response, kind: type[Answered]) -> Answered:
    """Raises _Refused."""
    if not answer.is_success:
        raise _Refused(_words(answer))
    try:
        return decode(answer.content, kind)
    except WireError:
        raise _Refused("the answer is not one of Grafana's; give the address at which people see it") from None


def _words(answer: httpx.Response) -> str:
    status = answer.status_code
    if status == 401:
        return "Grafana does not accept the token; make one for a service account with the role Editor"
    if status == 403:
        return "the token may not write dashboards; its service account needs the role Editor"
    if answer.has_redirect_location:
        place = printable_line(without_login(answer.headers["Location"]), 200)
        return f"it sends elsewhere ({status}), to {place}: give Grafana's own address"
    try:
        said = printable_line(decode(answer.content, _Refusal).message[:1000], 300)
    except WireError:  # a proxy's page
        said = ""
    return f"Grafana answered {status}" + (f": {said}" if said else "")
