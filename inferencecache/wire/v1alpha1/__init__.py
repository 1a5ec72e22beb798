"""Messages of the package `inferencecache.v1alpha1` (spec 06 §2), generated from the .proto file beside this one."""
