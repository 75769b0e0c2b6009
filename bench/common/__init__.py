"""What several benchmarks use: figures and their tables, results that a run goes on from, nodes that are none."""
