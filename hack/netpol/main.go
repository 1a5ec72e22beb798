// What enforces NetworkPolicies in the one-node cluster: the policy controller of kube-router, without its router and its
// service proxy, which are a bridge and kube-proxy here. Its chains and sets outlive it; hack/onenode/network.py removes them.
package main

import (
	"context"
	"flag"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "of a user who may list Pods, namespaces and policies, and get the node")
	config := options.NewKubeRouterConfig()
	flag.StringVar(&config.HostnameOverride, "hostname-override", "", "the node's name")
	services := flag.String("service-cluster-ip-range", "", "addresses of Services")
	klog.InitFlags(nil)
	flag.Parse()
	config.ClusterIPCIDRs = []string{*services}
	config.EnableIPv4, config.EnableIPv6 = true, false

	if err := run(*kubeconfig, config); err != nil {
		klog.Fatal(err)
	}
}

func run(kubeconfig string, config *options.KubeRouterConfig) error {
	ending, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(ending.Done())
	factory.WaitForCacheSync(ending.Done())

	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		namespaces: controller.NamespaceEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}

	// It reports every round, and would wait for somebody to listen.
	rounds := make(chan *healthcheck.ControllerHeartbeat, 1)
	go func() {
		for range rounds {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(rounds, ending.Done(), &running)
	<-ending.Done()
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
	}
	return nil
}
