"""Simulated weeks for bench/cost.py: what was planted, and what verdicts would have said of it."""
