"""The command line of `hack/cluster`."""

from __future__ import annotations

import argparse
import signal
import sys

from hack.onenode import requirements
from hack.onenode.cluster import Cluster
from hack.onenode.processes import ClusterError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hack/cluster", description="A Kubernetes cluster of one node on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start it (half a minute; the first time its parts are built, which takes a while)")
    check = commands.add_parser("check", help="say in a second what this machine lacks; exit 1 if it cannot be had")
    check.add_argument("--e2e", action="store_true", help="and for `make e2e`")
    commands.add_parser("down", help="end it, and undo what it changed on this machine")
    commands.add_parser("status", help="say what runs and how to reach it; exit 1 unless all of it does")
    commands.add_parser("load", help="bring images in").add_argument("image", nargs="+", help="name in Docker, or file")
    commands.add_parser("restart", help="end a part and start it again").add_argument("part", help="as status names it")
    arguments = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    cluster = Cluster(lambda line: print(f"cluster: {line}", file=sys.stderr, flush=True))
    try:
        match arguments.command:
            case "up":
                cluster.up()
                print(cluster.how_to_reach())
            case "check":
                needs = [*requirements.of_a_cluster(cluster.layout)] if not cluster.is_up() else []
                needs += [*requirements.of_the_tests()] if arguments.e2e else []
                print("\n".join(map(str, needs)) or "it is up already")
                return 0 if all(need.met or need.arranged for need in needs) else 1
            case "down":
                cluster.down()
            case "status":
                print(cluster.status())
                return 0 if cluster.is_up() else 1
            case "load":
                print("\n".join(cluster.load(*arguments.image)))
            case "restart":
                cluster.restart(arguments.part)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
