"""`laggard dashboards export DIR | push URL`: Grafana's dashboards as files, or sent to a running Grafana."""

from __future__ import annotations

import argparse
import json
import os
from typing import Final

from laggard.address import without_login
from laggard.dashboards.dashboard import dashboard_json
from laggard.dashboards.panel import Json
from laggard.dashboards.push import push_dashboards
from laggard.dashboards.registry import DASHBOARDS
from laggard.errors import UsageError
from laggard.secret_files import refuse_exposed
from laggard.terminal.output import show
from laggard.terminal.parts import Line

_ENV_TOKEN: Final = "GRAFANA_TOKEN"
_MAX_TOKEN_CHARACTERS: Final = 4096


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("export", "push"), help="export: write them to a folder; push: to Grafana")
    parser.add_argument("where", metavar="DIR|URL", help="the folder, or Grafana's URL")
    parser.add_argument("--folder", default="laggard", help="the folder in Grafana; default: laggard")
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"the token of a service account; default: the variable {_ENV_TOKEN}"
    )


def main(arguments: argparse.Namespace) -> int:
    dashboards = [dashboard_json(dashboard) for dashboard in DASHBOARDS]
    if arguments.action == "export":
        done = [_write(arguments.where, dashboard) for dashboard in dashboards]
        show([Line(f"{len(done)} dashboards are in {arguments.where}: {', '.join(done)}", "name")])
        return 0
    paths = push_dashboards(arguments.where, _token(arguments.token_file), arguments.folder, dashboards)
    places = [Line(f"  {without_login(arguments.where).rstrip('/')}{path}", whole=True) for path in paths]
    show([Line(f"{len(paths)} dashboards are in Grafana's folder {arguments.folder}:", "name"), *places])
    return 0


def dashboard_text(dashboard: Json) -> str:
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def _write(folder: str, dashboard: Json) -> str:
    name = f"{dashboard['uid']}.json"
    path = os.path.join(folder, name)
    try:
        os.makedirs(folder, exist_ok=True)
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            file.write(dashboard_text(dashboard))
        os.replace(f"{path}.part", path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return name


def _token(path: str | None) -> str:
    if path is None:
        token = os.environ.get(_ENV_TOKEN, "")
    else:
        refuse_exposed(path, "--token-file")
        try:
            with open(path, encoding="utf-8") as file:
                token = file.read(_MAX_TOKEN_CHARACTERS)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', 'it is no text')}") from None
    if not token.strip():
        raise UsageError(f"give the token of a service account, in --token-file or the variable {_ENV_TOKEN}")
    if not (token.strip().isascii() and token.strip().isprintable()):
        raise UsageError("the token has to be one line of printable ASCII, as Grafana makes it")
    return token.strip()
