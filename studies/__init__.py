"""Studies that the published results come from: which runs, why, and what is chosen on what."""
