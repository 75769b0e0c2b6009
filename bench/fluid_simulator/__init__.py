"""A simulator of training jobs by events: hosts, streams, and a fluid network. Its cases have laggard-bench's form."""
