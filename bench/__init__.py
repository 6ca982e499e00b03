"""Headrace beside its peers, measured in one run by one load driver."""
