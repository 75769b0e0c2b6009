"""The modules that every room may import, and that import no room."""
