//go:build tools

// Package controlplane pins the Kubernetes commands that the integration tests and the quickstart run.
package controlplane

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
