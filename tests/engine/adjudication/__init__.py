"""Descriptors and the Python reference of what the contract computes."""
