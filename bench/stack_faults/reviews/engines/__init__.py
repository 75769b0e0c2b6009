"""How the classifier is trained: a file an engine."""
