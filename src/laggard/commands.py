"""The commands of laggard, in the groups in which `laggard --help` shows them. Their examples are in examples.txt."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple


class Command(NamedTuple):
    name: str
    module: str
    help: str
    brief: bool = False
    """It runs before every job and ends soon: the garbage collector, which looks at all that is imported, stays off."""


GROUPS: Final[Mapping[str, tuple[Command, ...]]] = {
    "jobs": (
        Command("run", "laggard.trainer_hooks.run", "train with the hooks attached and no line changed"),
        Command(
            "locate",
            "laggard.collector.locate_command.command",
            "name the rank, link or host that is slow or hung, and why",
        ),
        Command("top", "laggard.collector.top", "watch the verdict, the ranks and the nodes in the terminal"),
        Command("stacks", "laggard.stack_answers.command", "show where in the code the ranks are, or stand still"),
        Command("diagnose", "laggard.diagnose.command", "find what is wrong in logs and pasted output"),
    ),
    "nodes": (
        Command(
            "healthcheck",
            "laggard.gate.command",
            "check this node: the gate for prologs, epilogs and timers",
            brief=True,
        ),
        Command("findings", "laggard.catalogue.command", "list or explain the codes of findings"),
        Command("exclude", "laggard.suspects.exclude_command", "list the nodes that the next job is to leave out"),
        Command("confirm", "laggard.suspects.confirm_command", "measure a suspect node against peers"),
        Command("ring", "laggard.rings.command", "time and check all-reduces among GPUs and nodes"),
    ),
    "history": (
        Command("incidents", "laggard.collector.incidents_command", "list the culprits that there are and were"),
    ),
    "advice": (
        Command("recommend", "laggard.recommend.command", "what to change, and what it should gain"),
        Command("tune", "laggard.tune.command", "measure configurations of NCCL and DeepSpeed"),
    ),
    "daemons": (
        Command("agent", "laggard.agent.main", "the daemon of a node: probes, ranks, metrics"),
        Command("collector", "laggard.collector.main", "the daemon that asks all agents and names the culprit"),
        Command("kubernetes", "laggard.kubernetes.command", "the controller that marks nodes in Kubernetes"),
    ),
    "more": (
        Command("demo", "laggard.demo.main", "slow one rank of a real job on this machine, and name it"),
        Command("completion", "laggard.completion", "write what completes commands in bash, zsh or fish"),
    ),
}

COMMANDS: Final = tuple(chain.from_iterable(GROUPS.values()))

PARTS: Final = (
    Command("agent --reader", "laggard.agent.reader.server", "read, for an agent without privileges, what takes some"),
    Command("agent --idle-rings", "laggard.agent.idle_rings.command", "measure this node while it is idle: a daemon"),
    Command("agent --kubernetes-job", "laggard.kubernetes.job", "run a command as a Job of Kubernetes"),
    Command(
        "healthcheck record",
        "laggard.probes.record.command",
        "copy what the probes read here into a folder that replays it",
    ),
    Command(
        "collector dashboards", "laggard.dashboards", "write Grafana's dashboards to files, or push them to Grafana"
    ),
    Command(
        "collector mcp",
        "laggard.assistant",
        "answer an assistant's questions to a collector, over standard input (MCP)",
    ),
    Command("collector metrics", "laggard.catalogue.metrics_command", "list the metrics of agents and collector"),
    Command("tune report", "laggard.reports.command", "what a table of measured runs says: best, ties, outliers"),
    Command("tune table", "laggard.tuner", "NCCL's tuner tables: compiled from measurements, checked, simulated"),
)
"""What runs something else than the command whose name it begins with: with its own flags and imports."""

MOVED: Final[Mapping[str, str]] = {
    "dashboards": "collector dashboards",
    "idle-rings": "agent --idle-rings",
    "kubernetes-job": "agent --kubernetes-job",
    "mcp": "collector mcp",
    "metrics": "collector metrics",
    "reader": "agent --reader",
    "record": "healthcheck record",
    "report": "tune report",
    "tuner": "tune table",
}
"""Commands that have another name now, by the old one, which still works and says so."""


def examples(name: str) -> Iterator[str]:
    """The lines of a command's examples: command lines, most with a remark above. Tests run them."""
    with open(os.path.join(os.path.dirname(__file__), "examples.txt")) as file:  # pathlib is slow to import
        _, _, own = file.read().partition(f"[{name}]\n")
    for line in own.splitlines():
        if line.startswith("["):
            return
        if line:
            yield line
