"""Cost of a grid of runs, before anybody rents machines: runs, step times, traffic, hours."""
