"""A generated world in the publishers' raw formats, and a server that offers it: the whole, without a download."""
