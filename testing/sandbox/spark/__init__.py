"""Spark's parts beyond PySpark: its Kafka source and Delta, from Maven's jars."""
