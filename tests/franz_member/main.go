// Consumes a topic with franz-go and prints the lines of RunningConsumer.java: each record
// ("R partition offset milliseconds"), each assigned partition ("A partition 0 milliseconds") and each error
// ("E message").
//
// Arguments: topic, how to commit (auto or explicit), milliseconds of work for each batch, and settings as NAME=VALUE:
// bootstrap.servers, group.id, client.id, group.instance.id, balancer (range or cooperative).
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func report(kind string, partition int32, offset int64) {
	fmt.Printf("%s %d %d %d\n", kind, partition, offset, time.Now().UnixMilli())
}

func main() {
	topic, commit := os.Args[1], os.Args[2]
	workMs, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	settings := map[string]string{}
	for _, one := range os.Args[4:] {
		name, value, _ := strings.Cut(one, "=")
		settings[name] = value
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(settings["bootstrap.servers"], ",")...),
		kgo.ConsumerGroup(settings["group.id"]),
		kgo.ClientID(settings["client.id"]),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			for _, partition := range assigned[topic] {
				report("A", partition, 0)
			}
		}),
	}
	if commit == "auto" {
		options = append(options, kgo.AutoCommitInterval(500*time.Millisecond))
	} else {
		options = append(options, kgo.DisableAutoCommit())
	}
	if instance := settings["group.instance.id"]; instance != "" {
		options = append(options, kgo.InstanceID(instance))
	}
	if settings["balancer"] == "range" {
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	for {
		fetches := client.PollRecords(context.Background(), 20)
		fetches.EachError(func(_ string, _ int32, err error) { fmt.Printf("E %s\n", err) })
		var batch []*kgo.Record
		fetches.EachRecord(func(record *kgo.Record) {
			report("R", record.Partition, record.Offset)
			batch = append(batch, record)
		})
		if len(batch) == 0 {
			continue
		}
		time.Sleep(time.Duration(workMs) * time.Millisecond)
		if commit == "explicit" {
			if err := client.CommitRecords(context.Background(), batch...); err != nil {
				fmt.Printf("E %s\n", err)
			}
		}
	}
}
