"""Subscriptions: who is woken when streams move, by a webhook or by a lease on a wake."""
