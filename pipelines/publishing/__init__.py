"""Publishing: dataset repositories, and features from and to other formats."""
