"""Touch: wakes clients that wait for changes of rows, and hardly any others."""
