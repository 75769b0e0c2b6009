"""What probes of the system share: what was read, as values."""
