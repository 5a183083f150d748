"""The command line: `lorad serve`, `route`, `demo`, `adapters`, `tenants`, `keys`, `usage`, `simulate`, `bench`,
`doctor`.

Each command imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lorad import __version__, config
from lorad.adapters import arguments as adapters_arguments
from lorad.bench import arguments as bench_arguments
from lorad.errors import LoradError
from lorad.fleet.config import RouteConfig
from lorad.later import later
from lorad.simulate import arguments as simulation_arguments
from lorad.tenants import arguments as tenants_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; a refusal is one line on stderr and exit code 1, or the command's own `refused_code`."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except LoradError as refusal:
        sys.stderr.write(f"lorad: {refusal.message} [{refusal.code}]\n")
        return int(getattr(arguments, "refused_code", 1))
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lorad", description="Serve many LoRA adapters from one base model.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"lorad {__version__}", help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a base model and its adapters over HTTP", allow_abbrev=False)
    serve.add_argument("model", help=config.EngineConfig.__dataclass_fields__["model"].metadata["help"])
    config.add_arguments(serve, config.EngineConfig, config.ServerConfig)
    serve.set_defaults(run=_serve)

    route = commands.add_parser(
        "route", help="stand in front of several servers and send each request where it costs least", allow_abbrev=False
    )
    config.add_arguments(route, RouteConfig)
    route.set_defaults(run=later("lorad.fleet.run", "route"))

    demo = commands.add_parser(
        "demo", help="serve the embedded base with its real tenants and ask them all at once", allow_abbrev=False
    )
    demo.add_argument("--once", action="store_true", help="stop after the burst instead of serving on")
    demo.add_argument("--prompt", default="", help="ask this instead of the demo's own question")
    config.add_arguments(demo, config.EngineConfig, config.ServerConfig)
    demo.set_defaults(run=_demo, model="smollm2")

    adapters = commands.add_parser(
        "adapters", help="look at adapter files, and at a running server's adapters", allow_abbrev=False
    )
    adapters_arguments.add_arguments(adapters)

    tenants_arguments.add_tenants(commands)
    tenants_arguments.add_keys(commands)
    tenants_arguments.add_usage(commands)

    simulate = commands.add_parser(
        "simulate", help="run the scheduler on a virtual clock: loads, policies, limits, faults", allow_abbrev=False
    )
    simulation_arguments.add_arguments(simulate)
    simulate.set_defaults(run=later("lorad.simulate.command", "simulate"))

    bench = commands.add_parser(
        "bench", help="measure what adapters cost on this machine, in process and over HTTP", allow_abbrev=False
    )
    bench.add_argument(
        "model", nargs="?", default="smollm2", help=config.EngineConfig.__dataclass_fields__["model"].metadata["help"]
    )
    bench_arguments.add_arguments(bench)
    config.add_arguments(bench, config.EngineConfig)
    bench.set_defaults(run=_bench)

    doctor = commands.add_parser(
        "doctor", help="print what this machine has and which operators were chosen", allow_abbrev=False
    )
    doctor.add_argument("--json", action="store_true", help="as data")
    doctor.set_defaults(run=_doctor)

    version = commands.add_parser("version", help="print the version", allow_abbrev=False)
    version.set_defaults(run=_version)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    from lorad.server.run import serve

    return serve(*_configs(arguments))


def _demo(arguments: argparse.Namespace) -> int:
    from lorad.demo.run import demo

    return demo(*_configs(arguments), prompt=arguments.prompt, once=arguments.once)


def _bench(arguments: argparse.Namespace) -> int:
    from lorad.bench.command import bench

    return bench(arguments, config.from_arguments(config.EngineConfig, arguments))


def _doctor(arguments: argparse.Namespace) -> int:
    from lorad.doctor import doctor

    return doctor(as_json=arguments.json)


def _version(arguments: argparse.Namespace) -> int:
    sys.stdout.write(f"lorad {__version__}\n")
    return 0


def _configs(arguments: argparse.Namespace) -> tuple[config.EngineConfig, config.ServerConfig]:
    return (
        config.from_arguments(config.EngineConfig, arguments),
        config.from_arguments(config.ServerConfig, arguments),
    )
