"""Every table and figure of the five papers as data, one TOML file a paper: how each is found, checked and run."""
