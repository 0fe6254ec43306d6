"""Few-shot learning."""
