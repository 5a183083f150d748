"""Which network addresses an http(s) source may be at.

A caller who may name a URL must not reach what only this machine reaches: services on loopback and in the private
network, and the cloud's metadata service, which hands out credentials. The name is resolved once and the checked
address is the one that is connected to, so that a name server can't answer differently the second time.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

from lorad.sources.reject import reject

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]
NEVER: frozenset[Address] = frozenset(
    ipaddress.ip_address(text) for text in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16")
)
"""Metadata services that are not link-local, or are reached by a private or even a public address."""
_SHARED = ipaddress.ip_network("100.64.0.0/10")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


def resolve(host: str, port: int) -> list[str]:
    """Addresses of `host` by the system's resolver, in its order."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def may_ask(text: str, private: bool) -> bool:
    """Whether the address may be asked; `private`: whether private and loopback ones may."""
    try:
        address = _inner(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    if address in NEVER or address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    if address.is_loopback or address.is_private or address in _SHARED:
        return private
    return address.is_global and not address.is_reserved


def addresses(host: str, port: int, private: bool, ask: Resolve = resolve) -> list[str]:
    """Addresses of `host` that may be asked; refused if it has none. Doesn't tell which ones it has."""
    try:
        found = ask(host.strip("[]"), port)
    except (OSError, UnicodeError):
        raise reject("source_unreachable", f"the host {host!r} can't be resolved") from None
    allowed = [address for address in found if may_ask(address, private)]
    if not allowed:
        kind = "that may be asked" if private else "in the public network"
        raise reject("source_address", f"the host {host!r} has no address {kind}")
    return allowed


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address.teredo is not None:
            return address.teredo[1]
        if address in _TRANSLATED:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
