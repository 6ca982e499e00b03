"""How long an append waits beside requests at the limits: the loads, the appends beside them, and the table."""
