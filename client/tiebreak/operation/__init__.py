"""The operation of a role that runs for months: whom it calls, what it measures, what it puts on record.

Nothing here decides or delays a move. A role tells its notices and its looks; all that waits for others (a node, a
store, a webhook) waits in threads of this room.
"""
