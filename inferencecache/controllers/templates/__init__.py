"""PromptTemplates: checked, numbered and pushed to the server, which renders them.

document    their revisions, and all that can be rendered as one body             (pure)
status      what a PromptTemplate's status says                                (pure)
reconciler  pushes when something changes and every interval, then writes statuses
"""
