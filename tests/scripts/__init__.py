"""Scripts of the kinds that people have, run beside plain PyTorch."""
