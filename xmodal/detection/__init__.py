"""Detection: boxes of things in pictures."""
