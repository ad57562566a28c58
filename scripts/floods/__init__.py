"""Games and clocks in simulated time: an honest side that many puppets of one attacker challenge at once."""
