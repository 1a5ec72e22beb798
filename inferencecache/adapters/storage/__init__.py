"""Storage adapters: one module for each provider, managed or external."""
