"""How many files this process may have open at once."""

from __future__ import annotations

import contextlib
import resource


def allow_all() -> None:
    """As many as the system allows: a connection is a file, and so is an adapter's image. Shells often give 1,024 of
    them."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Where the limit that was inherited is above the kernel's own (fs.nr_open) none can be set: what there is stays.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
