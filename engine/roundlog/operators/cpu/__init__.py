"""How the CPU computes what operators mean: matrix products and convolutions."""
