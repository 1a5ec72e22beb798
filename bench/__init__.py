"""Benchmarks: each compares, in one run, with what one would otherwise use, and prints a table of ratios."""
