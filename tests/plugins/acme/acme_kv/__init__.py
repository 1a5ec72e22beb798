"""Support for the Acme engine, its cache, and the store behind it."""
