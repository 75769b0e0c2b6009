"""The dashboards: a new one is a file of this folder and a name in this list."""

from __future__ import annotations

from typing import Final

from laggard.dashboards.fleet import FLEET
from laggard.dashboards.job import JOB
from laggard.dashboards.node import NODE

DASHBOARDS: Final = (FLEET, JOB, NODE)
