"""The ledger: the operator's state in Kafka, in a compacted topic that one process writes at a time.

Makes no decisions. An entry counts as written once a broker confirmed it. The entries' classes are in `model`.

    contents  the owner of a ledger, the JSON of its entries, and the current state from a log of them; pure
    topic     finds, creates and checks the topic, and writes transactions to it (KIP-98), one writer at a time
    ledger    opens, reads, writes and cleans up the topic
    journal   one connection's state in one run; notes of scans and alerts, in memory while there is no ledger
    records   writes all other entries, for the executor
"""
