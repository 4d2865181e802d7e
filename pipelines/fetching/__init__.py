"""Fetching: publishers' files into a root, every attempt in a ledger, sealed sets."""
