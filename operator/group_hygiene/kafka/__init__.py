"""Kafka's admin protocol: one result or one error per group, partition or broker.

No other package may import kafka-python, except the ledger's `topic` and `writer`. Decides nothing and knows no policy.

    client          connects and sends requests
    long_ids        receives a list of groups without very long ids; pure
    library         overrides of the library's private parts: limits for what brokers send
    login           the library's settings for a cluster: TLS and SASL
    protocol        requests that the library lacks, from `schemas`, and answers that it leaves undecoded
    schemas         message definitions, as JSON
    answers         decodes the largest responses from their bytes: groups, offsets, topics, disks
    encoding        Kafka's encoding of messages (KIP-482); pure, imports nothing
    bounds          memory limits for the responses to one connection
    oauth           tokens for SASL/OAUTHBEARER
    aws_tokens      tokens for Amazon MSK, by AWS's signer
    probe           finds out by plain sockets why a connection failed
    coordinators    requests about many groups or partitions: to the coordinators of groups, in chunks
    cluster         brokers, topics, and requests to the leaders of partitions
    brokers         capabilities of brokers: their versions, and transactions
    permissions     what the operator's Kafka user may do (KIP-430)
    changes         deletes groups and offsets, commits offsets, creates topics: only for the executor
    growth          brokers that compute partitions of the offsets log from an old number of them
    groups          list and describe groups
    loaded          checks that a list has all groups that the leaders know
    offsets         committed offsets; where partitions and their leader epochs end
    share_offsets   start offsets of share groups
    mirror          groups that MirrorMaker 2 writes into this cluster
    partition       the log of one partition, and its open transactions
    large_batch     reads the keys of a batch that is too large to be held
    codecs          unpacks batches of records; imported by Spark's workers
    record_batches  parses record batches by numpy, for Spark's workers
    record_columns  many records at once, a column for each field; pure, imported by Spark's workers
    last_records    finds out whether a partition holds a committed record from an offset on
    log_bounds      where the partitions of `__consumer_offsets` begin and end
    offsets_log     a group's partition and records in `__consumer_offsets`; pure, imported by Spark's workers
    late_commits    what groups committed right before their deletion
    tail            reads `__consumer_offsets` for records of a group after an offset
"""
