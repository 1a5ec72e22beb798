"""The kinds of the product: models, defaults, OpenAPI schemas, and the strings other people's clients depend on.

Everything here is pure: no client, no HTTP, no clock. A model decodes any object that was ever stored, because rules
tighten over time and a stored object must stay readable; what may be *written* is said by the schema (`schema`), the
defaulting rules (`defaulting`) and the validation of the webhooks.
"""
