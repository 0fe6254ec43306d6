"""Unsupervised domain adaptation."""
