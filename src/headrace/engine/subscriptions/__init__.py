"""Subscriptions: workers are woken by a webhook or a wake stream when streams have new entries."""
