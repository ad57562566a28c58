"""Parties that break the rules, for the demo and the tests. No honest role imports anything from here."""
