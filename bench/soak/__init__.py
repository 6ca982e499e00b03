"""A soak: mixed load of every kind on one server, whose answers are checked and whose resources are sampled."""
