// Rawread measures franz-go: it reads all records of a topic, from its beginning to the end that it has now, and looks
// into none of them. Arguments: bootstrap servers, topic, how many times. The last time is what counts.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	times, err := strconv.Atoi(os.Args[3])
	check(err)
	var records int64
	var seconds float64
	for range times {
		started := time.Now()
		records = read(strings.Split(os.Args[1], ","), os.Args[2])
		seconds = time.Since(started).Seconds()
	}
	fmt.Printf("{\"seconds\": %.6f, \"records\": %d}\n", seconds, records)
}

func read(servers []string, topic string) (records int64) {
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
					records++
				}
			}
			if part.Records[len(part.Records)-1].Offset+1 >= end {
				delete(left, part.Partition)
			}
		})
	}
	return records
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
