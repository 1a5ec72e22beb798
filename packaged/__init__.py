"""Proofs that need tools of others, helm and promtool: `make packaging` gets them and runs these."""
