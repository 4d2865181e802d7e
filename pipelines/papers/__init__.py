"""Papers: every table and figure of the five papers as data, a TOML file a paper."""
