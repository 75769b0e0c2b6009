"""Makes recordings of jobs whose truth is known: every rank's programme, every collective's transfer and every wait
follows from what it depends on. See docs/development/benchmark.md, and `python bench/simulate.py --help`."""
