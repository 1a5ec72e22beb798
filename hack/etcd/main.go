// Command etcd is the stock etcd server, built from its published module because release archives may be out of reach.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
