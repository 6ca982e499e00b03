"""What is searched, what is asked, and who is asked: the parts of the measures ``search`` and ``extract``."""
