"""Papers: every table and figure of the five papers, and their numbers of corpora, as data, a TOML file a paper."""
