// Command golang calls a server as a gateway written in Go does, and prints what it saw as one JSON object. The test
// beside it says what that must be. Messages come from files, so that no code need be generated for Go.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

const service = "/inferencecache.v1alpha1.InferenceCache/"

// raw passes messages as they are.
type raw struct{}

func (raw) Name() string                    { return "proto" }
func (raw) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = append([]byte(nil), b...); return nil }

func main() {
	target := flag.String("target", "", "host:port of the server")
	update := read(flag.String("update", "", "file with a CacheStateUpdate"))
	lookup := read(flag.String("lookup", "", "file with a LookupRouteRequest"))
	flag.Parse()

	connection, err := grpc.NewClient(*target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()

	seen := map[string]any{}
	seen["health"], seen["health_of_another"] = health(ctx, connection)
	seen["services"] = services(ctx, connection)
	seen["report"] = report(ctx, connection, update(), 50)
	seen["cancelled_report"] = cancelledReport(ctx, connection, update())
	seen["answer"] = invoke(ctx, connection, "LookupRoute", lookup())
	seen["compressed"] = invoke(ctx, connection, "LookupRoute", lookup(), grpc.UseCompressor(gzip.Name))
	seen["answers_at_once"] = atOnce(ctx, connection, lookup(), 32, 100)
	seen["too_large"] = invoke(ctx, connection, "LookupRoute", make([]byte, 4<<20+1))
	seen["unknown_method"] = invoke(ctx, connection, "Nothing", nil)
	seen["deadline"] = late(ctx, connection)
	if err := json.NewEncoder(os.Stdout).Encode(seen); err != nil {
		log.Fatal(err)
	}
}

func read(name *string) func() []byte {
	return func() []byte {
		data, err := os.ReadFile(*name)
		if err != nil {
			log.Fatal(err)
		}
		return data
	}
}

func code(err error) string { return status.Code(err).String() }

// invoke gives the answer's bytes, or the code of its failure.
func invoke(ctx context.Context, connection *grpc.ClientConn, method string, message []byte, more ...grpc.CallOption) any {
	var answer []byte
	if err := connection.Invoke(ctx, service+method, message, &answer, append(more, grpc.ForceCodec(raw{}))...); err != nil {
		return code(err)
	}
	return answer
}

func health(ctx context.Context, connection *grpc.ClientConn) (string, string) {
	client := healthpb.NewHealthClient(connection)
	answer, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Check(ctx, &healthpb.HealthCheckRequest{Service: "another"})
	return answer.Status.String(), code(err)
}

func services(ctx context.Context, connection *grpc.ClientConn) []string {
	stream, err := reflectionpb.NewServerReflectionClient(connection).ServerReflectionInfo(ctx)
	if err != nil {
		log.Fatal(err)
	}
	request := &reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}
	if err := stream.Send(request); err != nil {
		log.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		log.Fatal(err)
	}
	var names []string
	for _, each := range answer.GetListServicesResponse().GetService() {
		names = append(names, each.GetName())
	}
	return names
}

func open(ctx context.Context, connection *grpc.ClientConn) grpc.ClientStream {
	description := &grpc.StreamDesc{ClientStreams: true}
	stream, err := connection.NewStream(ctx, description, service+"ReportCacheState", grpc.ForceCodec(raw{}))
	if err != nil {
		log.Fatal(err)
	}
	return stream
}

func report(ctx context.Context, connection *grpc.ClientConn, update []byte, number int) any {
	stream := open(ctx, connection)
	for range number {
		if err := stream.SendMsg(update); err != nil {
			log.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		log.Fatal(err)
	}
	var ack []byte
	if err := stream.RecvMsg(&ack); err != nil {
		return code(err)
	}
	return ack
}

func cancelledReport(ctx context.Context, connection *grpc.ClientConn, update []byte) string {
	ctx, cancel := context.WithCancel(ctx)
	stream := open(ctx, connection)
	if err := stream.SendMsg(update); err != nil {
		log.Fatal(err)
	}
	cancel()
	var ack []byte
	return code(stream.RecvMsg(&ack))
}

// late opens a report and never ends it.
func late(ctx context.Context, connection *grpc.ClientConn) string {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	var ack []byte
	return code(open(ctx, connection).RecvMsg(&ack))
}

// atOnce counts the answers that many callers get.
func atOnce(ctx context.Context, connection *grpc.ClientConn, message []byte, callers, each int) int {
	var lock sync.Mutex
	var group sync.WaitGroup
	answers := 0
	for range callers {
		group.Go(func() {
			for range each {
				if _, answered := invoke(ctx, connection, "LookupRoute", message).([]byte); answered {
					lock.Lock()
					answers++
					lock.Unlock()
				}
			}
		})
	}
	group.Wait()
	return answers
}
