"""A fleet of up to 16,384 nodes that a few processes answer for, in front of a real collector."""
