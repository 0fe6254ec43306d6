"""What a grid of runs would cost before anybody rents machines: runs, step times, traffic, hours."""
