"""Files, cores, signals and processes."""
