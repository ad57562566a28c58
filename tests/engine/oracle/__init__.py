"""Results that operators have to give, worked out a second time by conformance/second_verifier.py."""
