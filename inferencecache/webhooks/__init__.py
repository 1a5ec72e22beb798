"""Admission: a thin skin of HTTP and AdmissionReview around pure functions.

`validation` judges objects, `injection` wires engine Pods; both are pure and serve the command line as well. `review`
reads and writes AdmissionReview documents, `handlers` says what each webhook does with one, `app` mounts them on their
paths, `server` serves the app over TLS. What a handler may look up in the cluster is in `selection`, and why Pods were
left unwired is kept in `unwired` until somebody sees them.
"""
