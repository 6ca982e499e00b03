"""Work that is leased: what of the streams has to be derived (anew), who does it, and what comes of it."""
