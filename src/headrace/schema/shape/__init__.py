"""Sets of JSON values that schemas admit, and that ops of lenses make of them; never too small, perhaps too large."""
