"""Names that users' scripts, alerts and dashboards rely on. A change here is a change for them: say so in CHANGELOG.md.

After a change on purpose: LAGGARD_WRITE_GOLDEN=1 make test TESTS=tests/test_frozen.py
"""

import argparse
import importlib
import os
import re
from pathlib import Path

from support.paths import DATA

from laggard.catalogue.metrics import METRICS
from laggard.commands import COMMANDS, PARTS
from laggard.kit import environment

GOLDEN = DATA / "golden"


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("LAGGARD_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} says otherwise; if the change is meant, write it anew (see above)"


def test_commands_and_flags() -> None:
    lines = []
    for command in (*COMMANDS, *PARTS):
        parser = argparse.ArgumentParser(add_help=False)
        importlib.import_module(command.module).configure(parser)
        lines.append(f"laggard {command.name}")
        for action in parser._actions:
            words = " ".join(action.option_strings) or str(action.metavar or action.dest)
            choices = "|".join(map(str, action.choices)) if action.choices else ""
            lines.append(f"    {words} {choices}".rstrip())
    check("command_line.txt", "\n".join(lines) + "\n")


def test_metrics() -> None:
    lines = [f"{metric.name} {metric.kind} {','.join(metric.labels)}".rstrip() for metric in METRICS]
    check("metric_names.txt", "\n".join(sorted(lines)) + "\n")


def test_every_metric_is_named_as_prometheus_wants_it() -> None:
    for metric in METRICS:
        assert metric.name.startswith(("laggard_", "process_")) and metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert ("job_id" in metric.labels) == (
            metric.name.startswith(("laggard_rank_", "laggard_culprit", "laggard_job_"))
            and metric.name != "laggard_rank_files_ignored"
        )


def test_every_environment_variable_stands_in_the_one_table() -> None:
    known = {value for name, value in vars(environment).items() if name.startswith("ENV_")} | {"LAGGARD_DEBUG"}
    text = (Path(__file__).parents[1] / "docs" / "hooks.md").read_text()
    listed = re.findall(r"^\| `(LAGGARD_\w+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(known)
