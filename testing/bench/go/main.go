// Kadm measures franz-go's admin client. Arguments: bootstrap servers, steady or full, prefix of the group ids that
// match, how many groups to fetch the offsets of at a time.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const timeout = 300 * time.Second

func main() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.BrokerMaxReadBytes(500_000_000),
	)
	check(err)
	defer client.Close()
	admin := kadm.NewClient(client)
	admin.SetTimeoutMillis(int32(timeout.Milliseconds()))
	ctx := context.Background()
	_, err = admin.BrokerMetadata(ctx)
	check(err)
	pattern := regexp.MustCompile("(?s)^" + regexp.QuoteMeta(os.Args[3]))
	batch, err := strconv.Atoi(os.Args[4])
	check(err)
	job := func() string { return full(ctx, admin, batch) }
	if os.Args[2] == "steady" {
		job = func() string { return steady(ctx, admin, pattern) }
	}
	fmt.Println(`{"ready": true}`)
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		started := time.Now()
		counts := job()
		fmt.Printf("{\"seconds\": %.6f, %s}\n", time.Since(started).Seconds(), counts)
	}
}

// As the operator does it: filter at the broker, match by name, and fetch the offsets of what matches only.
func steady(ctx context.Context, admin *kadm.Client, pattern *regexp.Regexp) string {
	_, err := admin.BrokerMetadata(ctx)
	check(err)
	listed, err := admin.ListGroupsByType(ctx, []string{"Classic", "Consumer"}, "Empty")
	check(err)
	var matching []string
	for name := range listed {
		if pattern.MatchString(name) {
			matching = append(matching, name)
		}
	}
	groups, partitions := fetch(ctx, admin, matching)
	return counted(len(listed), groups, partitions)
}

// Everything, a batch at a time: of each batch only the counts are kept.
func full(ctx context.Context, admin *kadm.Client, batch int) string {
	_, err := admin.BrokerMetadata(ctx)
	check(err)
	listed, err := admin.ListGroups(ctx)
	check(err)
	groups, partitions := 0, 0
	for names := range slices.Chunk(listed.Groups(), batch) {
		g, p := fetch(ctx, admin, names)
		groups, partitions = groups+g, partitions+p
	}
	return counted(len(listed), groups, partitions)
}

func fetch(ctx context.Context, admin *kadm.Client, names []string) (groups, partitions int) {
	for _, answer := range admin.FetchManyOffsets(ctx, names...) {
		check(answer.Err)
		groups++
		for _, topic := range answer.Fetched {
			partitions += len(topic)
		}
	}
	return groups, partitions
}

func counted(listed, groups, partitions int) string {
	return fmt.Sprintf("\"listed\": %d, \"groups\": %d, \"partitions\": %d", listed, groups, partitions)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
