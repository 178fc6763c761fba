// Rawread measures franz-go: it reads all records of the offsets topic, from its beginning to the end that it has now.
// Arguments: bootstrap servers, topic, how many times, and `raw` or `decode`. The last time counts: its wall time, and
// the CPU seconds of this process. raw: no record is looked into. decode: keys and values are decoded, on one core, by
// the classes of franz-go's kmsg, and what they hold is summed up.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type counts struct {
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	Records int64   `json:"records"`
	// With `decode` only. Offsets: the sum of all committed ones.
	Commits int64 `json:"commits"`
	States  int64 `json:"states"`
	Offsets int64 `json:"offsets"`
}

func main() {
	times, err := strconv.Atoi(os.Args[3])
	check(err)
	decodes := os.Args[4] == "decode"
	var found counts
	for range times {
		started, used := time.Now(), cpu()
		found = read(strings.Split(os.Args[1], ","), os.Args[2], decodes)
		found.Seconds, found.CPU = time.Since(started).Seconds(), cpu()-used
	}
	line, err := json.Marshal(found)
	check(err)
	fmt.Println(string(line))
}

func read(servers []string, topic string, decodes bool) (found counts) {
	ctx := context.Background()
	admin, err := kgo.NewClient(kgo.SeedBrokers(servers...))
	check(err)
	defer admin.Close()
	listed, err := kadm.NewClient(admin).ListEndOffsets(ctx, topic)
	check(err)
	check(listed.Error())
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	listed.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
			from[end.Partition] = kgo.NewOffset().AtStart()
		}
	})
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		// The last thing in a partition may be a transaction's marker.
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(10*time.Millisecond),
	)
	check(err)
	defer client.Close()
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachPartition(func(part kgo.FetchTopicPartition) {
			end, reading := left[part.Partition]
			if !reading || len(part.Records) == 0 {
				return
			}
			for _, record := range part.Records {
				if record.Offset < end && !record.Attrs.IsControl() {
					found.Records++
					if decodes {
						found.decode(record)
					}
				}
			}
			if part.Records[len(part.Records)-1].Offset+1 >= end {
				delete(left, part.Partition)
			}
		})
	}
	return found
}

func (found *counts) decode(record *kgo.Record) {
	switch binary.BigEndian.Uint16(record.Key) {
	case 0, 1:
		key, value := kmsg.NewOffsetCommitKey(), kmsg.NewOffsetCommitValue()
		check(key.ReadFrom(record.Key))
		check(value.ReadFrom(record.Value))
		found.Commits++
		found.Offsets += value.Offset
	case 2:
		key, value := kmsg.NewGroupMetadataKey(), kmsg.NewGroupMetadataValue()
		check(key.ReadFrom(record.Key))
		check(value.ReadFrom(record.Value))
		found.States++
	default:
		log.Fatalf("a key of type %d is not in the bench's logs", binary.BigEndian.Uint16(record.Key))
	}
}

func cpu() float64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
