"""Adapters that cannot be registered."""
