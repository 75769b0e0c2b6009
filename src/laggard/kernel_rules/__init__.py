"""What records of the kernel's log mean: rules as tables, which a log that was pasted and the live one are judged by."""
