"""Correct rounding of sums, products and functions, and the arithmetics of tensor cores."""
