"""Touch: who waits for changes of rows is woken by those that concern it, and by hardly any others."""
