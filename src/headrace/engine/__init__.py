"""The running system without HTTP."""
