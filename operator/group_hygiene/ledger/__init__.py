"""The ledger: the operator's state in Kafka, in a compacted topic that one process writes at a time.

Makes no decisions. An entry counts as written once a broker confirmed it. The entries' classes are in `model`.

    codec     reads and writes keys and values of entries as JSON; pure
    contents  the current state, from a log of entries; pure
    topic     finds and creates the topic, and checks its settings
    writer    writes transactions to one partition (KIP-98), one writer at a time
    ledger    opens, reads, writes and cleans up the topic
    journal   records the changes of one run, in memory while there is no ledger
"""
