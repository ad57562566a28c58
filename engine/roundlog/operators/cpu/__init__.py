"""Drivers of the CPU's kernels for matrix products and convolutions."""
