"""Results as tables, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from lorad.simulate.metric import METRICS, Metric
from lorad.simulate.report import Report, Requests
from lorad.simulate.run import Run
from lorad.simulate.summary import Figure, Summary

TENANTS_SHOWN = 20
DOCUMENTED = ("tokens_per_s", "ttft_p50_s", "ttft_p99_s", "page_ins", "page_in_gb", "preemptions")
"""What a page of documentation has room for."""


def summary_table(summaries: Sequence[Summary]) -> Table:
    """A row for each summary; over several seeds the median and the range."""
    heads, rows = _cells(summaries, METRICS)
    return _table("", heads, rows)


def markdown(summaries: Sequence[Summary], keys: Sequence[str] = DOCUMENTED) -> str:
    """The same for a page of documentation."""
    heads, rows = _cells(summaries, [metric for metric in METRICS if metric.key in keys])
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tenant_table(report: Report) -> Table:
    """A row for each tenant, those with the most requests first."""
    busiest = sorted(report.tenants, key=lambda tenant: -tenant.requests)
    heads = ["", "asked", "answered", "refused", "aborted", "failed", "tokens"]
    heads += ["wait p99, s", "TTFT p50, s", "TTFT p99, s", "total p99, s"]
    rows = [_requests(one) for one in [report.all, *busiest[:TENANTS_SHOWN]]]
    kept = [place for place, head in enumerate(heads) if not head or any(row[place] != "0" for row in rows)]
    table = _table("by tenant", [heads[place] for place in kept], [[row[place] for place in kept] for row in rows])
    if len(busiest) > TENANTS_SHOWN:
        table.caption = f"and {len(busiest) - TENANTS_SHOWN} more"
    return table


def sums_table(runs: Sequence[Run]) -> Table:
    """What random worlds had in them, all together."""
    sums: dict[str, int] = {}
    for run in runs:
        numbers, everybody = run.report.numbers, run.report.all
        counted = {
            "worlds": 1,
            "steps": numbers.steps,
            "requests": everybody.requests,
            "answered": everybody.finished,
            "refused": everybody.refused,
            "aborted": everybody.aborted,
            "failed": everybody.failed,
            "page-ins": numbers.page_ins,
            "page-ins that failed": numbers.page_ins_failed,
            "evictions": numbers.evictions,
            "preemptions": numbers.preemptions,
            "urgent elections": numbers.urgent,
        }
        for name, count in counted.items():
            sums[name] = sums.get(name, 0) + count
    rows = [[name, f"{count:,}"] for name, count in sums.items()]
    longest = max((run.report.numbers.longest_wait_milli for run in runs), default=0)
    return _table("", ["", "all together"], [*rows, ["longest wait", f"{longest / 10:.1f} % of its bound"]])


def _cells(summaries: Sequence[Summary], metrics: Sequence[Metric]) -> tuple[list[str], list[list[str]]]:
    swept = list(dict.fromkeys(key for summary in summaries for key in summary.sweep))
    names = {
        "scenario": len({summary.scenario for summary in summaries}) > 1,
        "policy": any(summary.policy for summary in summaries),
    }
    names = {name: shown for name, shown in names.items() if shown} or {"scenario": True}
    shown = [metric for metric in metrics if any(one.figures[metric.key].most > 0 for one in summaries)]
    rows = [
        [
            *(getattr(one, name) for name in names),
            *(one.sweep.get(key, "") for key in swept),
            *(_figure(metric, one.figures[metric.key]) for metric in shown),
        ]
        for one in summaries
    ]
    return [*names, *swept, *(metric.title for metric in shown)], rows


def _figure(metric: Metric, figure: Figure) -> str:
    median, least, most = (metric.text(value) for value in (figure.median, figure.least, figure.most))
    return median if least == most else f"{median} ({least}–{most})"


def _requests(one: Requests) -> list[str]:
    counts = (one.requests, one.finished, one.refused, one.aborted, one.failed, one.tokens)
    times = (one.wait_us.p99, one.ttft_us.p50, one.ttft_us.p99, one.total_us.p99)
    return [one.name, *map(str, counts), *(f"{time / 1e6:.2f}" for time in times)]


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    words = {"scenario", "policy", ""}
    for head in heads:
        table.add_column(head, justify="left" if head in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
