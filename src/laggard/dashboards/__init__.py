"""Grafana's dashboards as code: values in, JSON out. deploy/grafana has them as files."""
