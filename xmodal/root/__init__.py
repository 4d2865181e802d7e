"""The root: storage, identities, finished outputs and sealed sets."""
