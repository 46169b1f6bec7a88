"""What is told to, and read from, ``fully_shard``."""
