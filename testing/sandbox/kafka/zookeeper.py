"""ZooKeeper for brokers that need it, from their own jars, and the SCRAM users that it must have before they start."""

import json
import socket
from pathlib import Path

from testing.sandbox.kafka.java import JavaProgram, Jvm, properties_file
from testing.sandbox.kafka.scram import Credential
from testing.sandbox.kafka.security import Security


def zookeeper_program(jars: Path, directory: Path, port: int) -> JavaProgram:
    """One standalone ZooKeeper."""
    config = properties_file(
        directory / "zoo.cfg",
        {
            "dataDir": str(directory / "data"),
            "clientPort": str(port),
            "clientPortAddress": "127.0.0.1",
            # Sessions may be as short as two ticks: those of killed brokers must expire soon.
            "tickTime": "500",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "dump",
        },
    )
    main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return JavaProgram(main_class, jars, [config], Jvm(heap="256m"), {"": "info"})


def serves(port: int) -> bool:
    """Whether it answers: it listens a moment before that, and drops connections until then."""
    return "SessionTracker" in _dump(port)


def broker_registered(port: int, broker: int) -> bool:
    """True while a session that registered this broker is alive, or ZooKeeper gives no answer."""
    answer = _dump(port)
    return not answer or f"/brokers/ids/{broker}" in answer.split()


def _dump(port: int) -> str:
    """ZooKeeper's response to `dump` (sessions and ephemeral nodes); empty without a response."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"dump")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""


def scram_commands(security: Security) -> str:
    """Commands for ZooKeeper's shell that make SCRAM users (kafka-configs needs a JVM for each of them)."""
    lines = ["create /config ''", "create /config/users ''"]
    for name, password in security.users.items():
        config = {"version": 1, "config": {security.sasl: Credential.of(str(security.sasl), password).for_zookeeper()}}
        lines.append(f"create /config/users/{name} '{json.dumps(config, separators=(',', ':'))}'")
    return "\n".join([*lines, "quit", ""])
