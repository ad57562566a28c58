"""Fields of a data set, in memory, in files and elsewhere."""
