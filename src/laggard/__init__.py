"""laggard finds the slow rank of a training job, says why, and says what to change."""

__version__ = "0.1.0"
