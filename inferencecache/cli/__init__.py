"""The command line: one module per subcommand, each a composition root that parses flags and wires the rooms together.

Nothing is decided here. Offline subcommands call the pure functions that the webhooks and reconcilers call; long-
running ones build a manager and run it. Heavy imports stay inside the subcommands, so that each pays only for what it
uses.
"""
