"""`laggard healthcheck`: is this node fit for a job? For prologs, epilogs, timers and people."""

from __future__ import annotations

import argparse
import os

from laggard.gate.decision import decide
from laggard.gate.flags import check_flags, configure, make_settings
from laggard.gate.measure import measure
from laggard.gate.quick_ticket import write_ticket
from laggard.gate.said import say, say_disabled
from laggard.gate.settings import GateConf, GateSettings
from laggard.kit.terminal import show

__all__ = ["configure", "main"]


def main(arguments: argparse.Namespace) -> int:
    if arguments.accept is not None:
        from laggard.gate.accept import accept  # where an operator asks

        check_flags(arguments)
        return accept(arguments)
    settings = make_settings(arguments)
    if settings.is_disabled:
        say_disabled(settings)
        return 0
    if settings.gate_conf is not None:
        return _check_setup(settings, settings.gate_conf)
    measured = measure(settings)
    write_ticket(settings, os.environ)
    decision = decide(settings, measured)
    say(settings, measured, decision)
    return decision.status


def _check_setup(settings: GateSettings, conf: GateConf) -> int:
    from laggard.gate.self_check import setup_lines  # no prolog needs it

    lines, is_well = setup_lines(settings, conf)
    show(lines)
    return 0 if is_well else 1
