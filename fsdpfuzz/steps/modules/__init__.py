"""The modules that PyTorch has no ready-made class for."""
