"""Needs what is not installed."""

import a_library_nobody_installed  # noqa: F401
