"""What is told to, and read from, ``FullyShardedDataParallel``."""
