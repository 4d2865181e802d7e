"""Stages that read captions: their words, and vectors of captions and phrases."""
