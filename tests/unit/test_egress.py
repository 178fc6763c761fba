"""Where messages may go: nobody reaches through the operator what only the operator can reach."""

from __future__ import annotations

import pytest

from group_hygiene.errors import UsageError
from group_hygiene.process.egress import parse_egress


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("127.0.0.1", id="loopback"),
        pytest.param("127.255.1.2", id="loopback-elsewhere"),
        pytest.param("::1", id="loopback-v6"),
        pytest.param("0.0.0.0", id="unspecified"),  # noqa: S104
        pytest.param("0.1.2.3", id="this-host"),
        pytest.param("::", id="unspecified-v6"),
        pytest.param("169.254.1.1", id="link-local"),
        pytest.param("fe80::1", id="link-local-v6"),
        pytest.param("fe80::1%eth0", id="link-local-with-its-zone"),
        pytest.param("224.0.0.1", id="multicast"),
        pytest.param("ff02::1", id="multicast-v6"),
        pytest.param("255.255.255.255", id="broadcast"),
        pytest.param("169.254.169.254", id="metadata"),
        pytest.param("fd00:ec2::254", id="metadata-aws-v6"),
        pytest.param("100.100.100.200", id="metadata-alibaba"),
        pytest.param("192.0.0.192", id="metadata-oracle"),
        pytest.param("168.63.129.16", id="metadata-azure"),
        pytest.param("::ffff:127.0.0.1", id="mapped-loopback"),
        pytest.param("::ffff:169.254.169.254", id="mapped-metadata"),
        pytest.param("::127.0.0.1", id="compatible-loopback"),
        pytest.param("64:ff9b::a9fe:a9fe", id="translated-metadata"),
        pytest.param("2002:7f00:1::", id="tunnelled-loopback"),
        pytest.param("fd00:ec2::253", id="dns-aws-v6"),
        pytest.param("fd20:ce::254", id="metadata-google-v6"),
        pytest.param("::ffff:0:127.0.0.1", id="stateless-translated-loopback"),
        pytest.param("64:ff9b:1::a9fe:a9fe", id="translated-here-metadata"),
        pytest.param("64:ff9b:1:a9fe:a9:fe00::", id="translated-here-by-48-bits"),
        pytest.param("64:ff9b:1:a9:fe:a9fe::", id="translated-here-by-56-bits"),
        pytest.param("64:ff9b:1::a9:fea9:fe00:0", id="translated-here-by-64-bits"),
    ],
)
def test_refused_by_default_and_by_name(address: str) -> None:
    """Neither without a list, nor where its name is on it: only the address itself on the list allows it."""
    assert parse_egress([]).refusal("a.example.com", address) is not None
    assert parse_egress(["a.example.com"]).refusal("a.example.com", address) is not None
    assert parse_egress(["10.0.0.0/8"]).refusal("a.example.com", address) is not None


@pytest.mark.parametrize(
    ("allowed", "host", "address", "reached"),
    [
        pytest.param([], "a.example.com", "93.184.216.34", True, id="public"),
        pytest.param([], "am.monitoring", "10.96.1.2", True, id="of-the-cluster"),
        pytest.param([], "a.example.com", "2001:db8::1", True, id="v6"),
        pytest.param([], "a.example.com", "::ffff:10.0.0.1", True, id="mapped"),
        pytest.param(["am.monitoring"], "am.monitoring", "10.96.1.2", True, id="listed-host"),
        pytest.param(["AM.Monitoring."], "am.monitoring", "10.96.1.2", True, id="listed-host-written-otherwise"),
        pytest.param(["am.monitoring"], "am.monitoring.evil.com", "10.96.1.2", False, id="host-that-begins-like-it"),
        pytest.param(["am.monitoring"], "a.example.com", "93.184.216.34", False, id="not-listed"),
        pytest.param(["10.0.0.0/8"], "a.example.com", "10.96.1.2", True, id="listed-network"),
        pytest.param(["10.0.0.0/8"], "a.example.com", "11.0.0.1", False, id="outside-of-the-network"),
        pytest.param(["10.0.0.0/8"], "a.example.com", "::ffff:10.0.0.1", True, id="mapped-into-the-network"),
        pytest.param(["10.0.0.0/8", "am.monitoring"], "am.monitoring", "11.0.0.1", True, id="one-of-both"),
        pytest.param(["2001:db8::/32"], "a.example.com", "2001:db8::5", True, id="listed-v6-network"),
        pytest.param(["127.0.0.1"], "localhost", "127.0.0.1", True, id="loopback-listed"),
        pytest.param(["127.0.0.0/8"], "localhost", "127.9.9.9", True, id="loopback-network-listed"),
        pytest.param(["::1"], "localhost", "::1", True, id="loopback-v6-listed"),
        pytest.param(["169.254.169.254/32"], "a", "169.254.169.254", True, id="metadata-listed"),
        pytest.param([], "a.example.com", "64:ff9b:1::5db8:d822", True, id="translated-here"),
        pytest.param([], "a.example.com", "64:ff9b:1::a00:1", True, id="translated-here-many-zeros"),
        pytest.param([], "a.example.com", "64:ff9b:1:5db8:d8:2200::", True, id="translated-here-elsewhere"),
        pytest.param(["10.0.0.0/8"], "a", "64:ff9b:1::a00:1", False, id="translated-here-by-whom-nobody-knows"),
        pytest.param(["64:ff9b:1::/96"], "a", "64:ff9b:1::a00:1", True, id="translated-here-listed"),
        pytest.param(["10.0.0.0/8"], "a", "64:ff9b::a00:1", True, id="translated-into-the-network"),
        pytest.param(["bücher.example"], "bücher.example", "93.184.216.34", True, id="listed-host-not-in-ascii"),
        pytest.param(["0.0.0.0/0"], "a.example.com", "93.184.216.34", True, id="everything-of-v4"),
        pytest.param(["0.0.0.0/0"], "a.example.com", "2001:db8::1", False, id="everything-of-v4-is-no-v6"),
    ],
)
def test_list(allowed: list[str], host: str, address: str, reached: bool) -> None:
    """What is on the list is reached; with a list nothing else is."""
    assert (parse_egress(allowed).refusal(host, address) is None) is reached


@pytest.mark.parametrize(
    "entry",
    [
        *("", " ", "10.0.0.0/33", "10.1.2.3/8", "http://a", "a:80", "1.2.3", "a/b"),
        *("*.slack.com", " a b ", "a.example.com ", "a..b", ".a", "a\n"),
        *("::ffff:127.0.0.1", "::ffff:0:0/96", "64:ff9b::/96", "2002:7f00:1::", "::127.0.0.1", "::ffff:0:7f00:1"),
    ],
)
def test_what_is_no_place_is_refused(entry: str) -> None:
    """A mistake in the list must not become a host that nobody has."""
    with pytest.raises(UsageError):
        parse_egress([entry])
