"""`Rate`: how fast something went lately, for estimates."""

from __future__ import annotations

NEWEST = 0.3
"""Weight of the newest measurement."""


class Rate:
    """Seconds for a byte, smoothed."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def saw(self, size: int, seconds: float) -> None:
        """So many bytes took so long."""
        if size > 0:
            each = seconds / size
            self._seconds = each if self._seconds is None else self._seconds + NEWEST * (each - self._seconds)

    @property
    def each(self) -> float | None:
        """Seconds for a byte; None: nothing was measured yet."""
        return self._seconds

    def seconds(self, size: int) -> float | None:
        """How long so many bytes may take; None: nothing was measured yet."""
        return None if self._seconds is None else round(max(size, 0) * self._seconds, 3)
