"""Records: the tables that every corpus becomes, its splits and its views."""
