"""The command line, run as a user does."""
