"""Import files into a stream: read rows, infer a schema over all of them, append each exactly once."""
