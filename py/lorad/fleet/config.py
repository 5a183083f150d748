"""`RouteConfig`: the options of `lorad route`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lorad.config import YEAR_SECONDS, LogFormat, LogLevel, option

RoutePolicy = Literal["round-robin", "least-queue", "affinity", "cost"]


@dataclass(frozen=True)
class RouteConfig:
    """What a router needs."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8080, "port to listen on; 0: any free one", low=0, high=65535)
    replica: list[str] = option([], "servers in front of which it stands; repeatable", metavar="URL")
    replicas_dns: str = option(
        "", "name:port; every address of the name is a server, looked up again and again; default: none"
    )
    dns_seconds: float = option(5.0, "between two look-ups of --replicas-dns", low=0.1, high=YEAR_SECONDS)
    control_key: str = option("", "control key of the servers: for their inventories, and to have adapters warm there")
    policy: RoutePolicy = option("cost", "how a server is chosen: lorad's cost in seconds, or what it's compared with")
    away_loads: int = option(
        1,
        "what a load away from an adapter's homes costs beside the wait for it, in loads: more of it gives fewer loads "
        "and longer queues",
        low=0,
        high=1000,
    )
    attempts: int = option(3, "servers that a request is sent to, at most, while nothing of its answer was sent", low=1)
    connect_seconds: float = option(2.0, "how long connecting to a server may take", low=0.01, high=600)
    silent_seconds: float = option(3.0, "a server that tells nothing for so long gets no request", low=1, high=3600)
    forget_seconds: float = option(
        30.0, "adapters that lived on a server get other homes when it's gone for so long", low=1, high=YEAR_SECONDS
    )
    rebalance_seconds: float = option(5.0, "how often homes of adapters are looked at again", low=0.1, high=86400)
    moves_max: int = option(
        8, "adapters that are moved, and that servers are told to load, each time", low=0, high=4096
    )
    in_flight_max: int = option(4096, "requests at once; one more is answered 429", low=1, high=1 << 20)
    body_bytes_max: int = option(8 << 20, "longest request body", low=1024)
    drain_seconds: float = option(
        30.0, "how long running requests may go on after a stop signal", low=0, high=YEAR_SECONDS
    )
    log_format: LogFormat = option("text", "log lines on stderr; json: one object a line")
    log_level: LogLevel = option("warning", "least level of log lines")
