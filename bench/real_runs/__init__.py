"""Real trainings on gloo that something befalls from outside, with the truth of it, and what is said of them."""
