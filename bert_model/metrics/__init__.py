"""Official metrics: formulas on labels, numbers, answers and tags, on the scale of 0 to 100."""
