"""Kernel logs: their lines to records, and the tables of what records mean."""
