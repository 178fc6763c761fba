"""Message definitions of Apache Kafka that only tests need (clients/src/main/resources/common/message)."""
