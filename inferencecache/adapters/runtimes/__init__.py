"""Runtime adapters: one module for each (runtime, type)."""
