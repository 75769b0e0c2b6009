"""The benchmark of localisation: cases with known truth, the tools that are asked, and how their answers are scored."""
