"""A recommendation by all rules, from whatever is known. Pure."""

from __future__ import annotations

from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.registry import RULES
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Recommendation


def recommend(situation: Situation) -> Recommendation:
    return decide(situation, RULES)
