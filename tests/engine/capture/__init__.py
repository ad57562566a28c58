"""Capture of a PyTorch task: what becomes of it, and what is refused."""
