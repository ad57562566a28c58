"""From an FP64 value to the answer in the output's format."""
