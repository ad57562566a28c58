"""Loops over whole tensors on the CPU, compiled by numba: one read where torch would need ten.

They know nothing of operators. Each does what a reference in torch does, to the bit, and is tested against it. numba
compiles without fast-math: every + - x / and conversion is the IEEE 754 one, in the order that is written, and nothing
is contracted to FMA.
"""
