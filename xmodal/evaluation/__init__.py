"""Evaluation: metrics of a run, of a matrix and of released weights; pictures of attention."""
