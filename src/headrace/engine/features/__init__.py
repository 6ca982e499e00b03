"""Feature pipelines: event sources, derivations and tables, with their registration, appends and reads."""
