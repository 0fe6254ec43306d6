"""A finished run as a file for other runtimes: what ``bgn export`` does."""
