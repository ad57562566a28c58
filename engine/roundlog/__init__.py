"""roundlog: training steps as programs, executed to the same bits on every machine."""
