"""Trace of one step of a task, with tensors of the trace in place of its own."""
