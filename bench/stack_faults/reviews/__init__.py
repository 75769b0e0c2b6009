"""A user's package: a classifier of reviews, trained with several engines. Each of its faults is one line, marked with
`# fault: NAME`, that one rank comes to wait in; bench/stack_faults.py asks whether laggard names that line."""
