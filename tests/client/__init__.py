"""Tests of `client/tiebreak`, and the nodes, stores and disputes that they share."""
