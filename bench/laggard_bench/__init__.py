"""laggard-bench: recordings of simulated training jobs with the truth beside them, and a scorer for any tool."""
