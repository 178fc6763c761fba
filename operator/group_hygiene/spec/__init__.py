"""The specs of the custom resources, parsed into frozen records. No I/O: the caller reads Secrets and files.

Imports only `model`, `network` and packages below them.

    judge              the verdict on a spec, by its CRD
    policy             a GroupPolicy
    connection         a KafkaConnection
    keep               a GroupKeep
    access             the rights of namespaces on a connection
    owners             the owners of groups
    msk                logins to Amazon MSK by IAM, and which brokers may get tokens
    receivers          the receivers of alerts
    fields             the conversion of judged specs into records
    patterns           patterns of names, with `*`
    catalogue          programs whose groups have recognizable ids
    windows            when deletions may happen
    durations          durations and times as Kubernetes writes them
    secret             references to Secrets, and texts that must not be logged
    storage            where the pipeline's tables are, and the credentials to reach them
    jaas               Kafka's `sasl.jaas.config`: the options of a login module
    crds               the CRDs of this program
    client_properties  Kafka's client properties (`--command-config`) as TLS and SASL settings
"""
