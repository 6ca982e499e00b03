"""Finding events: one evaluator over companions, whether they lie in files or in memory."""
