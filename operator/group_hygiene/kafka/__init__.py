"""Kafka's admin protocol, results per group and errors per group. The only package that imports kafka-python.

It judges nothing and knows no policy. One module a subject: `client` (the one door to the library), `cluster`
(brokers, topics, permissions), `groups` (list, describe, delete), `offsets` (committed, end), `mirror` (MirrorMaker 2).
"""
