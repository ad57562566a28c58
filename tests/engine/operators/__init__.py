"""Every operator of the registry, held against exact oracles."""
