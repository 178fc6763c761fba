"""From Kafka's offsets log to Delta tables, on Spark: the only package that imports pyspark.

It writes nothing to Kafka and joins no group; what it may use of this product is what `.importlinter` says. Spark's
workers import parts of it too, so this file imports nothing.
"""
