"""The ledger: the operator's state in Kafka, in a compacted topic that one process writes at a time.

Makes no decisions. An entry counts as written once a broker confirmed it. The entries' classes are in `model`.

    codec     reads and writes keys and values of entries as JSON; pure
    contents  the current state, from a log of entries; pure
    topic     finds the topic, decides its settings, and checks them
    writer    writes transactions to one partition (KIP-98), one writer at a time
    ledger    opens, reads, writes and cleans up the topic
    settings  the owner and the topic of a ledger, and the names of its writers
    journal   one connection's state in one run; notes of scans and alerts, in memory while there is no ledger
    records   writes all other entries, for the executor
"""
