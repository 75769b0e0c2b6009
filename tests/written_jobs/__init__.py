"""Jobs that were written one by one, each with what is true of it: what came and went, what a script does by design,
and recordings that lack something. They share no code with the simulators that draw their jobs."""
