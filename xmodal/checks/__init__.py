"""Checks: statistics of a corpus, copies across splits."""
