"""tiebreak: the chain, the content store, the roles and the command line around `roundlog`."""
