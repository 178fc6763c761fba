"""Kafka's admin protocol: one result or one error per group, partition or broker.

No other package may import kafka-python, except the ledger's `topic`. Decides nothing and knows no policy.

    client          connects, sends requests, and finds out why connecting failed
    login           the library's settings for a cluster: TLS, SASL, and tokens
    library         overrides of the library's private parts, and requests that it lacks
    schemas         message definitions of these requests, as JSON
    bounds          memory limits for the responses to one connection
    answers         decodes the largest responses from their bytes: groups, offsets, topics, disks
    encoding        Kafka's encoding of messages (KIP-482); pure, imports nothing
    cluster         brokers, topics and permissions; requests to coordinators and to the leaders of partitions
    brokers         capabilities of brokers, and those with an old number of partitions of the offsets log
    changes         deletes groups and offsets, commits offsets, creates topics: only for the executor
    groups          lists and describes groups, and checks that a list has all that the leaders know
    offsets         committed offsets, those of share groups, and where partitions and their records end
    mirror          groups that MirrorMaker 2 writes into this cluster
    partition       the log of one partition, and its open transactions
    codecs          unpacks batches of records; imported by Spark's workers
    record_batches  parses record batches by numpy, for Spark's workers
    record_columns  many records at once, a column for each field; pure, imported by Spark's workers
    offsets_log     a group's partition and records in `__consumer_offsets`; pure, imported by Spark's workers
    offsets_topic   reads `__consumer_offsets`: where it begins and ends, records of groups, and late commits
"""
