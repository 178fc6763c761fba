"""Worlds: the same short life of some groups, in clusters that each differ in one setting. `make worlds`.

    table            all worlds
    codecs, offsets_topic, ledger_topic, clocks, sizes, transactions, replicas, disks, rights, listeners,
    mirrors, versions
                     the worlds of one family, with their changes
    world            a world as data: its cluster, its change, and the expected result
    changes          changes that several families use
    life             what happens in each world
    commands         runs the command line
    members          groups that a life makes, and who uses them
    results          the results of earlier calls
    configurations   which setting of Kafka is in which world: configurations.yaml
    __main__         the runner

The auditor, the proxy and the operator's processes are those of `faults`.
"""
