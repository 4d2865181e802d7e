"""Batches: what a training step reads, and the loader that reads it."""
