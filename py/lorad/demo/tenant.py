"""The demo's tenants: real adapters trained on real text, shipped with the package (`examples/tenants` made them)."""

from __future__ import annotations

from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "tenants"


class Tenant(msgspec.Struct, frozen=True):
    """One tenant, from its `tenant.json`."""

    name: str
    title: str
    description: str
    path: Path = FOLDER


def tenants() -> list[Tenant]:
    """All tenants that ship with the package, by name."""
    found = []
    for file in sorted(FOLDER.glob("*/tenant.json")):
        tenant = msgspec.json.decode(file.read_bytes(), type=Tenant)
        found.append(msgspec.structs.replace(tenant, path=file.parent))
    return found
