"""Decides whether a piece of advice was done, by what a run and a later one tell of themselves. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.deepspeed_config import DeepSpeedConfig
from laggard.recommend.outcome.values import CULPRIT, FINDING, NO, UNKNOWN, YES, Advised, SeenRun
from laggard.text.words import joined
from laggard.wire.digest import Digest

VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")
"""The keys that are names of environment variables."""

_OF_NCCL: Final = "NCCL_"
_OF_DEEPSPEED: Final = "deepspeed "

_FIELDS: Final[Mapping[str, str]] = {
    "use_multi_rank_bucket_allreduce": "multi_rank_bucket_allreduce",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "grad_accum",
    "train_batch_size": "train_batch",
    "stage3_prefetch_bucket_size": "prefetch_bucket_size",
    "zero_quantized_weights": "quantized_weights",
    "zero_quantized_gradients": "quantized_gradients",
}
"""The names that runs tell DeepSpeed's settings by, where they are other ones."""


class Done(NamedTuple):
    """`how`: by what it is known. `names`: those of the environment that changed with it. `left`: the nodes that were
    exchanged for it. `cause`: what it shares with other advice that was done by the same change."""

    done: str
    how: str
    names: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    cause: frozenset[str] = frozenset()


def done_of(advised: Advised, before: SeenRun, now: SeenRun) -> Done:
    if advised.target in (CULPRIT, FINDING):
        return _of_nodes(advised, before, now)
    if advised.target == "deepspeed":
        return _of_deepspeed(advised, before.digest, now.digest)
    if VARIABLE.fullmatch(advised.key):
        return _of_variable(advised, before.digest, now.digest)
    return Done(UNKNOWN, "no run tells whether it was done")


def _of_variable(advised: Advised, before: Digest, now: Digest) -> Done:
    if not before.environment or not now.environment:
        return Done(UNKNOWN, "a run does not tell its variables")
    name = advised.key
    old, new = before.environment.get(name, ""), now.environment.get(name, "")
    if not old and not new and not name.startswith(_OF_NCCL):
        return Done(UNKNOWN, f"no run tells of {name}")
    return _of_setting(advised, name, old, new, frozenset({name}))


def _of_deepspeed(advised: Advised, before: Digest, now: Digest) -> Done:
    section, _, key = advised.key.rpartition(".")
    field = _FIELDS.get(key, key)
    default = DeepSpeedConfig._field_defaults.get(field)
    tells = all(any(name.startswith(_OF_DEEPSPEED) for name in it.environment) for it in (before, now))
    if field not in DeepSpeedConfig._fields or not tells:
        return Done(UNKNOWN, f"a run does not tell of {key}")
    name = f"{_OF_DEEPSPEED}{field}"
    usual = "" if default is None else str(default)
    old, new = (it.environment.get(name, usual).lower() for it in (before, now))
    return _of_setting(advised, key, old, new, frozenset({name, f"{_OF_DEEPSPEED}section {section}"}))


def _of_setting(advised: Advised, name: str, old: str, new: str, names: frozenset[str]) -> Done:
    if new == advised.recommended:
        how = f"{name} is {new}, before {old or 'not set'}" if new else f"{name} is no longer set, before {old}"
        if new == old:
            return Done(NO, f"{name} was {new or 'not set'} already, and still is")
        return Done(YES, how, names, cause=frozenset({name}))
    if new == old:
        return Done(NO, f"{name} is {new or 'not set'} still")
    return Done(NO, f"{name} is {new or 'not set'}, and neither what it was nor what was advised")


def _of_nodes(advised: Advised, before: SeenRun, now: SeenRun) -> Done:
    """A node was exchanged, or the findings went that it had. A culprit of a machine without findings may have been
    repaired: nothing tells."""
    held, holds = set(before.digest.nodes), set(now.digest.nodes)
    left = {node for node in advised.nodes if node in held and node not in holds} if holds else set()
    if left and (advised.target == CULPRIT or left == set(advised.nodes)):
        how = f"{joined(sorted(left))} {'is' if len(left) == 1 else 'are'} no longer among its nodes"
        return Done(YES, how, left=frozenset(left), cause=frozenset(f"node {node}" for node in left))
    places = [(code, node) for code in advised.codes for node in advised.nodes if (code, node) in before.findings]
    if not places:
        return Done(UNKNOWN, "no run tells whether it was done: there was no finding that could go")
    unseen = sorted({node for _, node in places if node in holds and node not in now.judged_nodes})
    if unseen:
        return Done(UNKNOWN, f"it is not known what is wrong with {joined(unseen[:4])} now")
    still = [(code, node) for code, node in places if (code, node) in now.findings]
    if still:
        return Done(NO, f"{still[0][0]} is still on {still[0][1]}")
    gone = frozenset(f"{code} {node}" for code, node in places)
    codes, nodes = sorted({code for code, _ in places}), sorted({node for _, node in places})
    cause = gone | {f"node {node}" for node in left}
    return Done(YES, f"{joined(codes)} is gone from {joined(nodes[:4])}", left=frozenset(left), cause=cause)
