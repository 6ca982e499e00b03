"""The command line: ``headrace <noun> <verb>``."""
