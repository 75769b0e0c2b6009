"""Real trainings of many engines, each in thirteen cases, and what laggard says of them:
docs/development/engines.md."""
