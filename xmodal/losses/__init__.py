"""Losses: what models are trained to make small."""
