"""The verdicts on all recorded and simulated jobs and machines, frozen: what a change of laggard changes in them."""
