"""The strategy, played against a second implementation of the contract's rules."""
