"""A real Kubernetes cluster of one node, started and ended on this machine as root: Pods run, Services route.

It is made of the released components, built once from their Go modules, and of Debian's containerd, runc and bridge
plugin. No image registry is asked for anything: the two images that the cluster itself needs hold one static binary
each, and all others are brought by `load`. Everything lives below one folder, everything that was started is written
down with its process id and start time, and `down` undoes what `up` did, also when `up` failed half-way: processes,
containers, mounts, the bridge, packet filter rules, kernel settings.
"""
