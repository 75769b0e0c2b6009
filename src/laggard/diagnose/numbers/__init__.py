"""Numbers in texts of any tool: read as quantities, and compared."""
