"""The properties as pytest modules: ``pytest --pyargs fsdpfuzz.properties``."""
