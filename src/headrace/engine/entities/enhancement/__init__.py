"""Entity types that grow: fragments are tallied, promoted to fields, migrated and reconciled."""
