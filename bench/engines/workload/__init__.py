"""What the jobs train and on what, and what befalls them: the same for all engines. Nothing of laggard is in it."""
