"""Adversarial training."""
