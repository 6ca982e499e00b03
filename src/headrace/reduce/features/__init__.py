"""Feature operators as reducers: each a monoid over the events of one key in the order of the log."""
