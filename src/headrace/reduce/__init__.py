"""The reducer algebra: what a measure keeps of an event, how two such states merge, what a state answers."""
