"""Message schemas, in the format of Kafka's own message definitions, that `messages` turns into classes."""
