"""Which of the rules and thresholds of laggard.locate decide anything, and what: docs/development/benchmark.md."""
