"""Derived data: units of work, leases, planning, and states that are served with the tail."""
