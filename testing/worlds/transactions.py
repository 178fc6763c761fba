"""Worlds that differ in the transaction coordinator and in producers' ids."""

from __future__ import annotations

from testing.worlds.offsets_topic import feature
from testing.worlds.world import Cluster, Moment, Refuses, World, config

_UNAVAILABLE = "LedgerUnavailable"

WORLDS = (
    World(
        "transactions",
        "transactions-short",
        "transaction.max.timeout.ms=10000, less than the ledger's writer asks for",
        Cluster(config=config(transaction_max_timeout_ms="10000")),
        expected=Refuses(_UNAVAILABLE, "transaction.max.timeout.ms", ends=True),
    ),
    World(
        "transactions",
        "no-transaction-coordinator",
        "transaction.state.log.replication.factor=3 on one broker",
        Cluster(config=config(transaction_state_log_replication_factor="3")),
        expected=Refuses(_UNAVAILABLE, "transaction", ends=True),
    ),
    World(
        "transactions",
        "transaction-log-not-in-sync",
        "transaction.state.log.min.isr=2 on one broker, which counts as 1 there (KIP-966)",
        Cluster(config=config(transaction_state_log_min_isr="2")),
    ),
    World(
        "transactions",
        "transactional-ids-expire",
        "transactional.id.expiration.ms=1000, checked every second",
        Cluster(
            config=config(
                transactional_id_expiration_ms="1000",
                transaction_remove_expired_transaction_cleanup_interval_ms="1000",
            )
        ),
    ),
    World(
        "transactions",
        "producer-ids-expire",
        "producer.id.expiration.ms=1000, checked every second",
        Cluster(config=config(producer_id_expiration_ms="1000", producer_id_expiration_check_interval_ms="1000")),
    ),
    *(
        World(
            "transactions",
            f"transaction-log-of-{count}",
            f"transaction.state.log.num.partitions={count}, with small segments and buffers",
            Cluster(
                config=config(
                    transaction_state_log_num_partitions=str(count),
                    transaction_state_log_segment_bytes="1048576",
                    transaction_state_log_load_buffer_size="1000",
                )
            ),
        )
        for count in (1, 50)
    ),
    World(
        "transactions",
        "transactions-unverified",
        "transaction.partition.verification.enable=false",
        Cluster(config=config(transaction_partition_verification_enable="false")),
    ),
    World(
        "transactions",
        "transactions-aborted-late",
        "transactions that time out are aborted every minute",
        Cluster(config=config(transaction_abort_timed_out_transaction_cleanup_interval_ms="60000")),
    ),
    World(
        "transactions",
        "transactions-in-two-phases",
        "transaction.two.phase.commit.enable=true",
        Cluster(config=config(transaction_two_phase_commit_enable="true")),
    ),
    *(
        World(
            "transactions",
            f"transaction-version-{level}",
            f"the feature transaction.version is downgraded to {level}",
            change=feature("transaction.version", level),
            moment=Moment.FIRST,
            alone=True,
        )
        for level in (0, 1)
    ),
)
