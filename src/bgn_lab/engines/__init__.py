"""Where many runs run."""
