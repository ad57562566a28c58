"""Tracing of a task's step: PyTorch runs the user's own code, and every operator is written down."""
