"""The parts of bench/soak.py: what is run, what is done to it, and what is judged of it."""
