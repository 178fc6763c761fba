"""Finds abandoned consumer groups of Kafka clusters, and deletes them once there is proof that they are unused."""

__version__ = "0.2.0"
# In requests. An API server shows what is before the slash as the manager of fields, too.
USER_AGENT = f"group-hygiene/{__version__}"
