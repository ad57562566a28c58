"""Executing programs: a step as a whole, fused, in parts of its batch, and what stops it."""
