"""Media: from bytes to pixels, of pictures and clips."""
