"""Which URLs and addresses the connector may go out to."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.web.outgoing import OutgoingError, OutgoingPolicy, address_allowed, url_allowed

STRICT = OutgoingPolicy()

REFUSED = {
    "unspecified": ["0.0.0.0", "0.1.2.3", "0.255.255.255", "::"],
    "private": [
        "10.0.0.0",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.0",
        "192.168.255.255",
        "fc00::1",
        "fd00:ec2::254",
        "fdff:ffff::1",
        "fec0::1",
    ],
    "shared": ["100.64.0.0", "100.100.100.200", "100.127.255.255"],
    "loopback": ["127.0.0.1", "127.255.255.255", "::1"],
    "link-local": ["169.254.0.1", "169.254.169.254", "169.254.170.2", "fe80::1", "fe80::1%eth0"],
    "wrapped": [
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::ffff:a9fe:a9fe",
        "::7f00:1",
        "::8.8.8.8",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:808:808::1",
        "192.88.99.1",
    ],
    "special": [
        "192.0.0.1",
        "192.0.0.192",
        "198.18.0.1",
        "198.19.255.255",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:10::1",
        "100::1",
        "5f00::1",
    ],
    "documentation": ["192.0.2.1", "198.51.100.7", "203.0.113.9", "2001:db8::1", "3fff::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "4000::1", "::1:0:0:0", "1::1", "f000::1"],
}
ALLOWED = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2a00:1450:4001:82a::200e",
    "2001:4860:4860::8888",
    "2003::1",
]


@pytest.mark.parametrize(
    ("rule", "address"), [(rule, each) for rule, listed in REFUSED.items() for each in listed]
)
def test_an_address_off_the_public_internet_is_refused_by_its_rule(rule: str, address: str) -> None:
    verdict = address_allowed(ip_address(address), STRICT)
    assert (verdict.allowed, verdict.rule) == (False, f"outgoing.{rule}")
    assert address.partition("%")[0].split(":")[0] in verdict.reason


@pytest.mark.parametrize("address", ALLOWED)
def test_a_public_address_is_allowed(address: str) -> None:
    assert address_allowed(ip_address(address), STRICT).allowed


@given(st.ip_addresses(v=4))
def test_no_way_of_wrapping_an_ipv4_address_gets_it_through(address: IPv4Address) -> None:
    number = int(address)
    for base, shift in (("::ffff:0:0", 0), ("::", 0), ("64:ff9b::", 0), ("2002::", 80)):
        wrapped = IPv6Address(int(IPv6Address(base)) | number << shift)
        assert not address_allowed(wrapped, STRICT).allowed


@given(st.ip_addresses())
def test_python_agrees_that_what_is_allowed_is_global(address: IPv4Address | IPv6Address) -> None:
    if address_allowed(address, STRICT).allowed:
        assert address.is_global
        assert not address.is_multicast


@given(st.ip_addresses())
def test_a_configured_range_is_allowed_and_nothing_beside_it(
    address: IPv4Address | IPv6Address,
) -> None:
    policy = OutgoingPolicy(networks=(ip_network("10.1.0.0/16"), ip_network("fd00:1::/32")))
    inside = any(
        address.version == network.version and address in network for network in policy.networks
    )
    expected = inside or address_allowed(address, STRICT).allowed
    assert address_allowed(address, policy).allowed is expected


def test_allowing_a_range_does_not_allow_its_wrapped_form() -> None:
    policy = OutgoingPolicy(networks=(ip_network("127.0.0.0/8"),))
    assert address_allowed(ip_address("127.0.0.1"), policy).allowed
    assert not address_allowed(ip_address("::ffff:127.0.0.1"), policy).allowed


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("https://wake.example/x", None),
        ("https://wake.example:443/x?y=1", None),
        ("https://8.8.8.8/", None),
        ("https://[2606:4700:4700::1111]/", None),
        ("http://wake.example/", "scheme"),
        ("https://wake.example:8443/", "port"),
        ("https://wake.example:80/", "port"),
        ("https://user:pass@wake.example/", "userinfo"),
        ("https://wake.example@10.0.0.1/", "userinfo"),
        ("https://127.0.0.1/", "loopback"),
        ("https://[::1]/", "loopback"),
        ("https://[::ffff:169.254.169.254]/", "wrapped"),
        ("https://169.254.169.254/latest", "link-local"),
        ("ftp://wake.example/", "url"),
        ("file:///etc/passwd", "url"),
        ("gopher://127.0.0.1/", "url"),
        ("wake.example", "url"),
        ("//wake.example/", "url"),
        ("https://", "url"),
        ("https:///x", "url"),
        ("https://./", "url"),
        ("", "url"),
        ("https://wake.example:99999/", "port"),
        ("https://wake.example:x/", "url"),
        ("https://[::1/", "url"),
        ("https://wake.example/\x00", "url"),
        ("https://" + "a" * 3000, "url"),
    ],
)
def test_a_url_is_judged_by_its_form(url: str, rule: str | None) -> None:
    verdict = url_allowed(url, STRICT)
    assert verdict.allowed is (rule is None)
    assert rule is None or verdict.rule == f"outgoing.{rule}"


def test_http_and_ports_can_be_allowed() -> None:
    policy = OutgoingPolicy(http=True, ports=frozenset({8080}))
    assert url_allowed("http://wake.example/", policy).allowed
    assert url_allowed("http://wake.example:8080/", policy).allowed
    assert not url_allowed("http://wake.example:8081/", policy).allowed


def test_a_reason_never_repeats_the_path_which_may_be_a_secret() -> None:
    verdict = url_allowed("http://wake.example/s3cr3t", STRICT)
    assert "s3cr3t" not in verdict.reason
    with pytest.raises(OutgoingError) as raised:
        verdict.demand()
    assert "s3cr3t" not in str(raised.value)


@given(st.text(max_size=60))
def test_any_text_is_answered(text: str) -> None:
    url_allowed(text, STRICT)
    url_allowed("https://" + text, STRICT)
