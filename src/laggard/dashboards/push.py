"""Dashboards sent to a running Grafana. Here alone grafana-api is used, which nobody has maintained since 2020."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from laggard.address import without_login
from laggard.dashboards.panel import Json
from laggard.errors import UsageError

_TIMEOUT_SECONDS: Final = 30.0
_FOLDER_UID: Final = "laggard"


def push_dashboards(url: str, token: str, folder: str, dashboards: Sequence[Json]) -> list[str]:
    """Puts `dashboards` into the folder titled `folder`, in place of those with the same uid, and makes the folder
    where it is missing. Returns the dashboards' paths. Raises UsageError where Grafana refuses or does not answer."""
    grafana, errors = _client(_parse(url), token)
    try:
        folders = {each["uid"]: each["title"] for each in grafana.folder.get_all_folders()}
        uid = next((known for known, title in folders.items() if title == folder), None)
        if uid is None:
            uid = grafana.folder.create_folder(folder, uid=_FOLDER_UID)["uid"]
        return [_push(grafana, uid, dashboard) for dashboard in dashboards]
    except errors as error:
        raise UsageError(f"{without_login(url)}: {_words(error)}") from None


def _push(grafana: Any, folder_uid: str, dashboard: Json) -> str:
    body = {"dashboard": dashboard, "folderUid": folder_uid, "overwrite": True, "message": "laggard dashboards push"}
    return str(grafana.dashboard.update_dashboard(body).get("url", ""))


def _client(url: SplitResult, token: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Returns the client, and the exceptions with which it says that something failed."""
    try:
        import requests
        from grafana_api.grafana_api import GrafanaException
        from grafana_api.grafana_face import GrafanaFace
    except ImportError:
        raise UsageError("grafana-api is not installed; run: pip install 'laggard[grafana]'") from None
    prefix = url.path.strip("/")
    client = GrafanaFace(
        auth=token,
        host=url.hostname,
        port=url.port,
        protocol=url.scheme,
        url_path_prefix=f"{prefix}/" if prefix else "",
        timeout=_TIMEOUT_SECONDS,
    )
    return client, (GrafanaException, requests.RequestException, KeyError, TypeError, ValueError)


def _parse(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise UsageError(f"{without_login(url)!r} is no URL of a Grafana; give one such as https://grafana.example")
    return parts


def _words(error: Exception) -> str:
    status = getattr(error, "status_code", None)
    if status == 401:
        return "Grafana does not accept the token; make one for a service account with the role Editor"
    if status == 403:
        return "the token may not write dashboards; its service account needs the role Editor"
    if status is not None:
        return f"Grafana answered {status}: {str(error)[:300]}"
    if isinstance(error, (KeyError, TypeError, ValueError)):
        return "the answer is not one of Grafana's"
    return f"Grafana cannot be reached ({type(error).__name__})"
