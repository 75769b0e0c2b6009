"""What is wrong in gate.conf: a prolog that laggard refuses to run for its flags passes every job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from laggard.errors import UsageError
from laggard.gate.flags import check_flags, chosen_probes, configure
from laggard.gate.policy import MODES, REPORT_ONLY


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def mode_problems(mode: str | None) -> list[str]:
    """`mode`: MODE of gate.conf; None: not known."""
    if mode is None or mode in MODES:
        return []
    return [f"MODE of gate.conf is {mode!r}, with which every job passes: set it to {' or '.join(MODES)}"]


def own_flags(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What FLAGS of gate.conf ask for, as the scripts pass them, and what is wrong with them."""
    parser = _Parser(prog="laggard healthcheck", add_help=False, allow_abbrev=False)
    configure(parser)
    scripts_own = ["--gate", REPORT_ONLY]
    try:
        arguments, rest = parser.parse_known_args([*scripts_own, *words])
        if rest:
            raise UsageError(f"unknown argument {rest[0]!r}")
        check_flags(arguments)
        chosen_probes(arguments)
    except UsageError as error:
        form = (
            "; each word is an element of its own: FLAGS=(--skip PROBE)" if any(" " in word for word in words) else ""
        )
        told = f"FLAGS of gate.conf are no flags of `laggard healthcheck`, so that every job passes: {error}{form}"
        return parser.parse_args(scripts_own), [told]
    return arguments, []
