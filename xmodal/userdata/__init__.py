"""User data: a list, a folder or a hub dataset as a corpus."""
