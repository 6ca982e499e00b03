"""Feature pipelines: event sources, derivations and tables, registered, pushed to and asked."""
