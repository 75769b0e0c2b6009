"""`laggard collector dashboards export DIR | push URL`: Grafana's dashboards as files, or sent to a running Grafana."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from laggard.kit.address import without_login
from laggard.kit.errors import UsageError
from laggard.kit.parts import Line
from laggard.kit.secret_files import read_token_file
from laggard.kit.terminal import show
from laggard.kit.tls import tls_failure
from laggard.kit.words import printable_line

_FILES: Final = Path(__file__).parent / "deploy" / "grafana" / "dashboards"
_ENV_TOKEN: Final = "GRAFANA_TOKEN"
_TIMEOUT_SECONDS: Final = 30.0
_ROLE: Final = "; the token has to be of a service account with the role Editor"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("export", "push"), help="export: write them to a folder; push: to Grafana")
    parser.add_argument("where", metavar="DIR|URL", help="the folder, or Grafana's URL")
    parser.add_argument("--folder", default="laggard", help="the folder in Grafana; default: laggard")
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"the token of a service account; default: the variable {_ENV_TOKEN}"
    )


def main(arguments: argparse.Namespace) -> int:
    files = sorted(_FILES.glob("*.json"))
    if arguments.action == "export":
        _export(files, arguments.where)
        names = ", ".join(file.name for file in files)
        show([Line(f"{len(files)} dashboards are in {arguments.where}: {names}", "name")])
        return 0
    places = _push(files, arguments.where, _token(arguments.token_file), arguments.folder)
    lines = [Line(f"  {place}", whole=True) for place in places]
    show([Line(f"{len(places)} dashboards are in Grafana's folder {arguments.folder}:", "name"), *lines])
    return 0


def _export(files: list[Path], folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        for file in files:
            shutil.copyfile(file, os.path.join(folder, file.name))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from None


def _token(path: str | None) -> str:
    token = os.environ.get(_ENV_TOKEN, "").strip() if path is None else read_token_file(path, "--token-file")[0]
    if not (token and token.isascii() and token.isprintable()):
        raise UsageError(f"give the token of a service account, one line, in --token-file or the variable {_ENV_TOKEN}")
    return token


def _push(files: list[Path], url: str, token: str, folder: str) -> list[str]:
    """Puts the dashboards into the folder titled `folder`, in place of those with the same uid, and makes the folder if
    there is none. Returns the dashboards' URLs. Raises UsageError if Grafana refuses or does not answer."""
    grafana = _client(url, token)
    import requests  # what grafana_api asks with
    from grafana_api.grafana_api import GrafanaException

    try:
        uids = {each["title"]: each["uid"] for each in grafana.folder.get_all_folders()}
        uid = uids.get(folder) or grafana.folder.create_folder(folder, "laggard")["uid"]
        asked = {"folderUid": uid, "overwrite": True, "message": "laggard collector dashboards push"}
        boards = [{**asked, "dashboard": json.loads(file.read_bytes())} for file in files]
        paths = [str(grafana.dashboard.update_dashboard(board)["url"]) for board in boards]
        return [printable_line(f"{grafana.api.url_protocol}://{grafana.api.url_host}{path}") for path in paths]
    except GrafanaException as error:
        why = f"Grafana refuses: {error.message}{_ROLE if error.status_code in (401, 403) else ''}"
    except requests.TooManyRedirects:
        why = "it sends elsewhere; give Grafana's own address"
    except (requests.JSONDecodeError, LookupError, TypeError):  # a TypeError: grafana_api's, of a text with "message"
        why = "the answer is not one of Grafana's; give the address at which people see it"
    except requests.RequestException as error:
        why = f"Grafana cannot be reached: {_first_failure(error)}"
    raise UsageError(printable_line(f"{without_login(url)}: {why}", 500))


def _client(url: str, token: str) -> Any:
    """It follows no redirect: the token is for the server that was named. Raises UsageError if `url` is none."""
    from grafana_api.grafana_face import GrafanaFace

    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.port == 0:
            raise ValueError
    except ValueError:
        raise UsageError(f"{without_login(url)!r} is no URL of a Grafana, such as https://grafana.example") from None
    path = f"{parts.path.strip('/')}/".lstrip("/")
    system = ssl.get_default_verify_paths()  # without them requests takes authorities of its own
    authorities = system.cafile or system.capath or True
    grafana = GrafanaFace(token, parts.netloc, None, path, parts.scheme, authorities, _TIMEOUT_SECONDS)
    grafana.api.s.max_redirects = 0
    return grafana


def _first_failure(error: BaseException) -> str:
    """The first error: requests and urllib3 wrap it in errors of their own."""
    while error.__context__:
        error = error.__context__
    return tls_failure(error) or str(error)
