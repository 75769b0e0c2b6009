"""The names that have left laggard, and what serves instead: for who still gives one. Values alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_COST: Final = "an incident has lost_gpu_hours, and laggard_lost_gpu_seconds_total counts them: multiply by your price"

_AGAINST: Final = "`laggard locate --trace AFTER --against BEFORE` says what a change did to a run"

_ACCEPT: Final = "on a node root accepts a finding with `laggard healthcheck --accept`; Alertmanager silences alerts"

COMMANDS: Final[Mapping[str, str]] = {
    "advice": _AGAINST,
    "cost": "`laggard incidents --format json` has lost_gpu_hours, and laggard_lost_gpu_seconds_total counts them",
    "findings acknowledge": _ACCEPT,
    "findings acknowledged": "`laggard healthcheck --accept` lists what is accepted on a node",
    "findings maintenance": "SLURM keeps jobs away (scontrol create reservation), Alertmanager has silences",
}

FLAGS: Final[Mapping[str, str]] = {
    "healthcheck --acknowledged": "--accepted FILE has what root accepts on this node",
    "incidents --acknowledged": _ACCEPT,
    "recommend --after": _AGAINST,
}
"""The keys are a command and its flag."""

_SCRAPED: Final = "an OpenTelemetry Collector scrapes /metrics (docs/metrics.md#opentelemetry)"

_TOLD: Final = "Alertmanager tells of incidents, by the alert LaggardIncident (docs/alerts.md)"

SETTINGS: Final[Mapping[str, str]] = {
    "acknowledge_token_file": "the secret of `laggard confirm` is confirm_token_file now",
    "acknowledged_file": _ACCEPT,
    "gpu_hour_price": _COST,
    "currency": _COST,
    "otlp_endpoint": _SCRAPED,
    "otlp_headers_file": _SCRAPED,
    "otlp_interval_seconds": _SCRAPED,
    "webhook_format": _TOLD,
    "webhook_secret_file": _TOLD,
    "webhook_url_file": _TOLD,
}
