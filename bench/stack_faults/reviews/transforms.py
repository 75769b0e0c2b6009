"""What is done with each review before it is read."""

from __future__ import annotations

import time

from reviews import plan


class Lower:
    def __call__(self, text: str) -> str:
        return text.lower()


class Augment:
    """Words are left out at random; on one rank it asks a service for each."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, text: str) -> str:
        if self.seconds:
            time.sleep(self.seconds)  # fault: transform
        return text.replace("very ", "")


def transforms() -> list[Lower | Augment]:
    return [Lower(), Augment(plan.SLOW_SECONDS / plan.BATCH if plan.mine("transform") else 0.0)]
