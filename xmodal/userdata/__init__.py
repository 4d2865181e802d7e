"""User data: a list, a folder or a hub dataset becomes a corpus."""
