"""Other tools as they ship, each in an environment and a process of its own: what they are asked, what they say."""
