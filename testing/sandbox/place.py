"""The addresses on which servers listen: loopback, or a separate network."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """An IPv4 address for servers, and the command that starts a program in the network that has this address.

    `names`: DNS names under which clients reach the address; certificates hold them.
    """

    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


HERE = Place()


def direct(*addresses: str) -> dict[str, str]:
    """Environment variables by which clients use no proxy for these addresses."""
    known = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join([*filter(None, [known]), *addresses]))
