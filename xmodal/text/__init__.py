"""Text: tokenizers, vocabularies, word vectors, sentence vectors, position codes, WordNet."""
