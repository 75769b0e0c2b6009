"""`helm`, as far as the docs use it, by Helm as a library: template, install, upgrade and uninstall."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.chart import for_any_version


def helm_first(folder: Path) -> str:
    """A PATH on which this is `helm`: a program in `folder`."""
    program = folder / "helm"
    tests = Path(__file__).resolve().parents[1]
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tests} exec {sys.executable} -m support.helm_command "$@"\n')
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def _main() -> None:
    import helm_python as helm

    parser = argparse.ArgumentParser(prog="helm")
    parser.add_argument("command", choices=["template", "install", "upgrade", "uninstall"])
    parser.add_argument("name")
    parser.add_argument("chart", nargs="?", type=Path)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--set", default="")
    parser.add_argument("--reuse-values", action="store_true")
    asked = parser.parse_args()
    values: dict[str, Any] = helm.parse_set_string(asked.set) if asked.set else {}
    if asked.command == "template":
        with helm.Chart.load(asked.chart) as chart:
            print("---\n".join(chart.render(values, name=asked.name, namespace=asked.namespace).values()))
        return
    with helm.Config(namespace=asked.namespace) as config, tempfile.TemporaryDirectory() as temporary:
        if asked.command == "uninstall":
            config.uninstall(asked.name)
            return
        chart = for_any_version(asked.chart, Path(temporary) / "chart")
        if asked.reuse_values:
            values = _merged(config.get_values(asked.name) or {}, values)
        does = config.install if asked.command == "install" else config.upgrade
        does(chart, asked.name, values, namespace=asked.namespace)
        print("STATUS: deployed")


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for key, value in above.items():
        found[key] = _merged(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


if __name__ == "__main__":
    _main()
