"""Stages: one module each."""
