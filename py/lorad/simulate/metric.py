"""What runs are compared by: a title, a figure of a run, and how it's written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lorad.simulate.report import Report


@dataclass(frozen=True)
class Metric:
    """One figure of a report; `digits` that matter when it's written, None for counts."""

    key: str
    title: str
    of: Callable[[Report], float]
    digits: int | None = None

    def text(self, value: float) -> str:
        """As people read it."""
        if self.digits is None:
            return f"{value:.0f}"
        if value == 0:
            return "0"
        places = 0
        while places < 3 and abs(value) < 10 ** (self.digits - 1 - places):
            places += 1
        return f"{value:.{places}f}"


METRICS = (
    Metric("tokens_per_s", "tok/s", lambda report: report.numbers.tokens_out_ks / 1000, 3),
    Metric("ttft_p50_s", "TTFT p50, s", lambda report: report.all.ttft_us.p50 / 1e6, 2),
    Metric("ttft_p99_s", "TTFT p99, s", lambda report: report.all.ttft_us.p99 / 1e6, 2),
    Metric("page_ins", "page-ins", lambda report: report.numbers.page_ins),
    Metric("page_in_gb", "page-in GB", lambda report: report.numbers.page_in_bytes / 1e9, 2),
    Metric("preemptions", "preempted", lambda report: report.numbers.preemptions),
    Metric("urgent", "urgent", lambda report: report.numbers.urgent),
    Metric("finished", "answered", lambda report: report.all.finished),
    Metric("refused", "refused", lambda report: report.all.refused),
    Metric(
        "longest_wait_percent", "longest wait, % of bound", lambda report: report.numbers.longest_wait_milli / 10, 2
    ),
)
BY_KEY = {metric.key: metric for metric in METRICS}
