"""Results that operators have to give, worked out a second time: exact operators, sources and whole programs by
conformance/second_verifier.py; the real numbers that inexact operators round, with what their bounds are held against,
in fractions, written from the meanings in the definitions alone."""
