"""The embedded one-node Kubernetes of demo and tests; `python3 deploy/localcluster` runs it."""
