"""What has left laggard, and the line that says what serves instead: for who still gives its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SETTINGS: Final[Mapping[str, str]] = {
    "otlp_endpoint": "an OpenTelemetry Collector scrapes /metrics (docs/metrics.md#opentelemetry)",
    "otlp_headers_file": "an OpenTelemetry Collector scrapes /metrics (docs/metrics.md#opentelemetry)",
    "otlp_interval_seconds": "an OpenTelemetry Collector scrapes /metrics (docs/metrics.md#opentelemetry)",
    "webhook_format": "Alertmanager tells of incidents, by the alert LaggardIncident (docs/alerts.md)",
    "webhook_secret_file": "Alertmanager tells of incidents, by the alert LaggardIncident (docs/alerts.md)",
    "webhook_url_file": "Alertmanager tells of incidents, by the alert LaggardIncident (docs/alerts.md)",
}
