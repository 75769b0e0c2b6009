"""Other tools as they ship, each in an environment and a process of its own: what is asked of them, and what they say."""
