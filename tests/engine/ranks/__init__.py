"""Steps and runs that several processes share."""
