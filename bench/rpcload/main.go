// Command rpcload calls one unary gRPC method as fast as a number of callers can, and prints one line of JSON: calls,
// errors, calls per second, p50 and p99 in microseconds, and the CPU microseconds per call that a server process used.
//
// Messages are sent as they stand in a file, each after four bytes of length, in turn; answers are not parsed. So the
// client costs as little as a client can, and all cases cost it the same.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// ticksPerSecond is USER_HZ, which is 100 on every Linux that matters.
const ticksPerSecond = 100

// raw is a codec that neither writes nor reads messages.
type raw struct{}

func (raw) Name() string                    { return "proto" }
func (raw) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*int) = len(b); return nil }

func main() {
	target := flag.String("target", "", "host:port of the server")
	method := flag.String("method", "", "full name of the method")
	file := flag.String("messages", "", "file of messages, each after its length")
	callers := flag.Int("callers", 1, "calls in flight")
	warmup := flag.Duration("warmup", time.Second, "time before anything is measured")
	duration := flag.Duration("duration", 3*time.Second, "time that is measured")
	timeout := flag.Duration("timeout", 0, "deadline of each call; 0: none")
	pid := flag.Int("pid", 0, "the server's process")
	flag.Parse()

	messages := read(*file)
	connection, err := grpc.NewClient(*target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		log.Fatal(err)
	}
	var next atomic.Uint64
	call := func() error {
		message := messages[next.Add(1)%uint64(len(messages))]
		ctx := context.Background()
		if *timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, *timeout)
			defer cancel()
		}
		var size int
		return connection.Invoke(ctx, *method, message, &size)
	}
	load(*callers, *warmup, call)
	before := cpu(*pid)
	began := time.Now()
	took, failures := load(*callers, *duration, call)
	elapsed := time.Since(began)
	used := cpu(*pid) - before
	if len(took) == 0 {
		log.Fatal("no call succeeded")
	}
	slices.Sort(took)
	line, _ := json.Marshal(map[string]any{
		"calls":      len(took),
		"errors":     failures,
		"per_second": float64(len(took)) / elapsed.Seconds(),
		"p50_us":     took[len(took)/2].Microseconds(),
		"p99_us":     took[len(took)*99/100].Microseconds(),
		"cpu_us":     used / float64(len(took)) * 1e6,
	})
	fmt.Println(string(line))
}

// load runs callers side by side for a while; it gives how long each successful call took.
func load(callers int, duration time.Duration, call func() error) ([]time.Duration, int) {
	var lock sync.Mutex
	var group sync.WaitGroup
	var all []time.Duration
	failures := 0
	end := time.Now().Add(duration)
	for range callers {
		group.Go(func() {
			var took []time.Duration
			failed := 0
			for now := time.Now(); now.Before(end); {
				err := call()
				then := time.Now()
				if err == nil {
					took = append(took, then.Sub(now))
				} else if failed++; failed == 1 {
					log.Print(err)
				} else if failed == 100 {
					break
				}
				now = then
			}
			lock.Lock()
			defer lock.Unlock()
			all = append(all, took...)
			failures += failed
		})
	}
	group.Wait()
	return all, failures
}

func read(file string) [][]byte {
	data, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	var messages [][]byte
	for len(data) >= 4 {
		size := int(binary.BigEndian.Uint32(data))
		messages = append(messages, data[4:4+size])
		data = data[4+size:]
	}
	return messages
}

// cpu is the user and system time of a process in seconds.
func cpu(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		log.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ticks := 0.0
	for _, field := range fields[11:13] {
		value, _ := strconv.ParseFloat(field, 64)
		ticks += value
	}
	return ticks / ticksPerSecond
}
