#!/usr/bin/env bash
# Finds redis-server (or valkey-server), installing Debian's package where that is possible, and prints its path as the
# last line of stdout. Everything else goes to stderr. Only the tests of `--index-store` need it.
set -euo pipefail

say() { printf 'redis: %s\n' "$*" >&2; }

found() {
  local name
  for name in redis-server valkey-server; do
    command -v "$name" && exit 0
  done
  return 0
}

found
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  say "there is no redis-server or valkey-server on PATH; please install either of them"
  exit 1
fi
say "installing Debian's redis-server"
# The package would start a service on the usual port, which nobody here wants.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq >&2
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
found
say "redis-server was installed but is not on PATH"
exit 1
