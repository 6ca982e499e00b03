"""HTTP itself: connections, parsing, admission, dispatch and answers; no resource is known here."""
