"""Text: from captions to words, ids and vectors."""
