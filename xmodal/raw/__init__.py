"""Raw files: reading what publishers ship, such as text, JSON, archives and Gulp dumps."""
