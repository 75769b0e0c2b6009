"""The formats of what people paste from a terminal: the output of one tool or of several, with prompts or without."""
