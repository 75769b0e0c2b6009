"""What records of the kernel's log mean: rules as tables, for logs that are pasted and for the live one."""
