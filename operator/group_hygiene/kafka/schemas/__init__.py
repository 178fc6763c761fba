"""Message schemas, in the format of Kafka's own message definitions, that `protocol` turns into classes."""
