"""Compiled loops over whole tensors, on CPUs and, in Triton's interpreter, of devices."""
