"""Publishers of generated worlds that tests alone need."""
