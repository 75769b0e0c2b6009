"""The benchmarks' tests stand on what the repository's stand on, by whose conftest.py they are ordered and run."""

pytest_plugins = ("conftest",)
