"""Search of events: one evaluator over companions in files and in memory."""
