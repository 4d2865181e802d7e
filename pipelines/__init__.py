"""The stages that build corpora and features, what runs them, and the command line."""
