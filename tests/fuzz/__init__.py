"""Random bytes, scripts and runs, and what campaigns have found of them."""
