"""Metrics: numbers from similarities, without torch."""
