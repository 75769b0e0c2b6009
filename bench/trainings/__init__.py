"""What benchmarks train: each file is a rank of a real job, or starts the ranks of one."""
