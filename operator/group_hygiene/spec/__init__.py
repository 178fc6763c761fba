"""The specs of the custom resources, parsed into frozen records. No I/O: the caller reads Secrets and files.

Imports only `model`, `process` and `errors`.

    crds             the CRDs of this program, and the verdict on a spec, by its CRD
    fields           the conversion of judged specs into records; durations, times, and references to Secrets
    policy           a GroupPolicy and its windows, and a GroupKeep
    connection       a KafkaConnection: rights of namespaces, owners of groups, receivers of alerts
    client_settings  how to reach a cluster: TLS, SASL, Amazon MSK, and Kafka's client properties
    storage          where the pipeline's tables are, and the credentials to reach them
    patterns         patterns of names, with `*`, and programs whose groups have recognizable ids
"""
