"""Writes docs/configuration.md from the settings' types: their keys, defaults and docstrings.

.venv/bin/python scripts/config_docs.py > docs/configuration.md
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from laggard.agent.idle_rings.command import IdleRingsSettings
from laggard.agent.settings import AgentSettings
from laggard.collector.settings import CollectorSettings
from laggard.kubernetes.settings import ControllerSettings
from laggard.probes.active_registry import ACTIVE_PROBES
from laggard.probes.profiles import Expectations, Profile
from laggard.probes.registry import PROBES
from laggard.probes.system.model.site_lines import Nhc, SiteCheck, SiteChecks

GATE_CONF = Path(__file__).parents[1] / "deploy" / "slurm" / "gate.conf"

HEAD = (Path(__file__).parent / "heads" / "configuration.md").read_text(encoding="utf-8")


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        section("Agent", "`laggard agent --config FILE`", AgentSettings),
        section("Idle rings", "`laggard agent --idle-rings --config FILE`", IdleRingsSettings),
        section("Collector", "`laggard collector --config FILE`", CollectorSettings),
        section("Controller", "`laggard kubernetes controller --config FILE`", ControllerSettings),
        section("Profile", "`laggard healthcheck --profile FILE`, and `profile` of an agent", Profile),
        section("Expectations", "`laggard healthcheck --expect FILE`", Expectations),
        section("Site checks", "`/etc/laggard/checks.yaml` (docs/site-checks.md)", SiteChecks),
        section("Site checks: a line of `checks`", "A program; `run` has to be given.", SiteCheck),
        section("Site checks: `nhc`", "LBNL NHC's own lines.", Nhc),
        thresholds(),
        gate(),
    ]
    return "\n".join(parts)


def section(title: str, where: str, settings: type[msgspec.Struct]) -> str:
    described = dict(_docstrings(settings))
    rows = [
        f"| `{field.name}` | {_default(field)} | {described.get(field.name, '')} |"
        for field in msgspec.structs.fields(settings)
    ]
    return "\n".join((f"## {title}\n", f"{where}\n", "| key | default | meaning |", "|---|---|---|", *rows, ""))


def thresholds() -> str:
    """The keys under `thresholds`, by probe."""
    rows = []
    for probe in (*PROBES, *ACTIVE_PROBES):
        fields = msgspec.structs.fields(probe.thresholds)
        keys = ", ".join(f"`{field.name}`: {_shown(getattr(probe.thresholds, field.name))}" for field in fields)
        rows += [f"| `{probe.name}` | {keys} |"] if keys else []
    return "\n".join(("## Thresholds of the probes\n", "| probe | keys and defaults |", "|---|---|", *rows, ""))


def gate() -> str:
    """deploy/slurm/gate.conf, which describes itself."""
    lines = GATE_CONF.read_text(encoding="utf-8").splitlines()
    text = "".join(f"{line}\n" for line in lines)
    where = "`/etc/laggard/slurm/gate.conf`, shell assignments; `laggard healthcheck --help` has the flags."
    return f"## Gate\n\n{where}\n\n```text\n{text}```\n"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    made = field.default is msgspec.NODEFAULT
    return _shown(field.default_factory() if made else field.default)


def _docstrings(settings: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """The text after each field in the source of the type."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(body, ast.ClassDef)
    for field, following in zip(body.body, body.body[1:], strict=False):
        is_described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_described:
            text = str(ast.literal_eval(following.value))  # type: ignore[attr-defined]
            yield field.target.id, re.sub(r"\s+", " ", text).replace("|", "\\|")


def _shown(value: object) -> str:
    text = json.dumps(msgspec.to_builtins(value))
    return "`" + text.replace("|", "\\|") + "`"


if __name__ == "__main__":
    print(page(), end="")
