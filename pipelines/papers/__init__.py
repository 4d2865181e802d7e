"""Papers: every table and figure of the five papers, and how one is run."""
