"""NCCL's variables as the machines' provider publishes them. A virtual machine hides what NCCL would find by itself."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.recommend.advice.provider_settings import provider_of
from laggard.recommend.advice.rule import Rule, variable
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item


def judge(situation: Situation) -> Iterator[Item]:
    provider = provider_of(situation.products, situation.networks)
    if provider is None or not situation.environment_known:
        return
    for name, published in provider.variables.items():
        given = situation.environment.get(name)
        if given == published:
            continue
        apply, revert = variable(name, given, published)
        yield Item(
            target="nccl_env",
            key=name,
            current=given if given is not None else "its default",
            recommended=published,
            reason=f"{provider.name} publishes {name}={published} for these machines",
            evidence=(),
            gain=Gain("rule", None, 0.9, None),
            risk="Such lists grow old, and are for the provider's images: an option to be measured, alternately.",
            apply=apply,
            revert=revert,
            commands=(apply,),
            source=provider.source,
        )


RULE = Rule("provider", judge, "the providers' own lists: src/laggard/recommend/advice/provider_settings.py")
