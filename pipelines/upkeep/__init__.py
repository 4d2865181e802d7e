"""Upkeep: what lies under a root, what a build would do, what is damaged or failed."""
