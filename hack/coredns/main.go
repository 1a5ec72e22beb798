// The DNS server of the one-node cluster: CoreDNS with the plugins its Corefile names and no others, which halves its build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// The order in which a query passes the plugins, whatever order the Corefile names them in.
	dnsserver.Directives = []string{"errors", "health", "ready", "cache", "kubernetes"}
	coremain.Run()
}
