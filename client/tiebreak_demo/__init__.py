"""Three short stories on real data, played by real processes on an embedded chain."""
