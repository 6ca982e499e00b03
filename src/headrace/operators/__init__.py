"""What events are reduced by: one protocol, and operators, each a class that declares itself."""
