#!/usr/bin/env bash
# Makes the Mooncake master and store of .venv runnable: installs the libraries they want from the distribution, where
# that is possible, and prints the master's path as the last line of stdout. Everything else goes to stderr. Only the
# tests of the KV cache pool need it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'mooncake: %s\n' "$*" >&2; }

packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
master=$packages/mooncake/mooncake_master
store=$packages/mooncake/store.so
if [ ! -x "$master" ]; then
  say "there is no Mooncake in .venv: its wheels are for Linux on x86_64 and aarch64; run the tests on such a machine"
  exit 1
fi

missing() { ldd "$master" "$store" | awk '/not found/ { print $1 }' | sort -u | tr '\n' ' '; }

if [ -z "$(missing)" ]; then
  echo "$master"
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  say "these libraries are missing: $(missing)"
  say "please install them; on Debian and Ubuntu: apt-get install libibverbs1 libnuma1 libcurl4"
  exit 1
fi
say "installing Debian's libibverbs1, libnuma1 and libcurl4"
apt-get update -qq >&2
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libibverbs1 libnuma1 libcurl4 >/dev/null
if [ -n "$(missing)" ]; then
  say "these libraries are still missing: $(missing)"
  exit 1
fi
echo "$master"
