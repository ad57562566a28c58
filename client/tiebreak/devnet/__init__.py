"""Development chains: anvil as a process, or an embedded one in this process."""
