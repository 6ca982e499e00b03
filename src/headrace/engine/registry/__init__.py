"""Changes of stream schemas and profiles: proposed, planned, applied, and verified on stored events."""
