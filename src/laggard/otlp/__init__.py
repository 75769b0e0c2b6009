"""A daemon's metrics sent as OTLP, OpenTelemetry's protocol, to where nobody scrapes. The extra is `laggard[otlp]`."""
