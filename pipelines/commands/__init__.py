"""Commands: one module each."""
