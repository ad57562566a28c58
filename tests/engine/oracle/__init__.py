"""Results that every operator of the registry has to give, worked out a second time.

Written from the meanings in the definitions alone, with Python's integers and fractions; no kernel, no tensor library
and none of the engine's own arithmetic takes part. Slow and plain on purpose: one screenful an operator, to be read
against the meaning.
"""
