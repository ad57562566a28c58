"""Loops over whole tensors on the CPU, compiled by numba or, as numba does it, by LLVM: one read where torch needs ten.

They know nothing of operators. Each does what a reference in torch does, to the bit, and is tested against it. They are
compiled without fast-math: every + - x / and conversion is the IEEE 754 one, in the order that is written, and nothing
is contracted to FMA.
"""
