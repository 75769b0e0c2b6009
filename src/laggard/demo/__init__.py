"""`laggard demo`: a real DeepSpeed job with one slow rank on this machine, and the whole path that names it."""
