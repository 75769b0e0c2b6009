"""Real trainings on gloo that something befalls from outside their program, with its truth, and what is said of them."""
