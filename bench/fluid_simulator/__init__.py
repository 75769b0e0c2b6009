"""A simulator of training jobs by events: hosts, streams and a fluid network. It makes cases in laggard-bench's form."""
