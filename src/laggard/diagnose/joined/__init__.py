"""One answer from the files of a job: who was first, on which host, and why. Pure."""
