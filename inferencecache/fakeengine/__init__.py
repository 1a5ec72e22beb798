"""An engine without a model: it publishes KV-cache events as vLLM and SGLang do, for tests and demonstrations.

Its blocks are real in everything but content: prompts are cut into them, prefixes are hit or missed, the oldest are
evicted, and each change is told on a ZMQ socket in either encoding of the wire. Faults that real engines have (messages
that never arrive, numbers that are used up, restarts) can be asked for.
"""
