"""Losses that models share."""
