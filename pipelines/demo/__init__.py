"""Demo: a generated world in the publishers' raw formats, and a server for it."""
