"""The state of this machine, and of the stores and nodes that a user names: facts, and for whatever is not as it
should be a sentence with the remedy.

Nothing here changes anything, and nothing waits without a deadline. PyTorch is asked in a process of its own, which may
crash or hang in a driver.
"""
