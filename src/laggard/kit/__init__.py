"""What every room may import, and what imports no room."""
