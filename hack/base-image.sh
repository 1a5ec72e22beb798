#!/usr/bin/env bash
# Finds or makes the image that the Dockerfile takes Python from, and prints its name as the last line of stdout.
#
#   hack/base-image.sh [--look]        --look: only look whether one is there, and neither pull nor make it
#
# Looked at in this order: $BASE; the Dockerfile's own BASE in Docker; one made by an earlier run; that BASE in its
# registry. Where no registry can be reached, Debian 12 with Python is made by debootstrap, as root, in some two minutes.
#
# Certificates that this machine's administrator added to its trust store are added to the image's too: where they are
# needed to fetch packages here, the build that starts from the image needs them as well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

docker=${DOCKER:-docker}
wanted=$(sed -n 's/^ARG BASE=//p' Dockerfile)
suite=bookworm
made=inferencecache-base:$suite
local_certificates=/usr/local/share/ca-certificates

say() { printf 'base image: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
found() { printf '%s\n' "$1"; exit 0; }
is_there() { "$docker" image inspect "$1" >/dev/null 2>&1; }

[ -z "${BASE:-}" ] || found "$BASE"
for image in "$wanted" "$made"; do
  if is_there "$image"; then
    say "$image"
    found "$image"
  fi
done
[ "${1:-}" != --look ] || die "neither $wanted nor $made is there"

"$docker" info >/dev/null 2>&1 || die "no Docker daemon answers; start it, or set DOCKER_HOST"
say "pulling $wanted"
if refusal=$(timeout 600 "$docker" pull --quiet "$wanted" 2>&1); then
  found "$wanted"
fi
say "it cannot be pulled: $refusal"
[ "$(id -u)" = 0 ] || die "making one by debootstrap needs root; or give the name of one with Python 3.11 or newer: BASE=name"
if ! command -v debootstrap >/dev/null; then
  command -v apt-get >/dev/null || die "install debootstrap; or give the name of an image with Python 3.11 or newer: BASE=name"
  say "installing Debian's debootstrap"
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
fi

work=$(mktemp -d)
unpacking=
cleanup() {
  if [ -n "$unpacking" ]; then
    kill -TERM -- "-$unpacking" 2>/dev/null || true
    wait "$unpacking" 2>/dev/null || true
    umount "$work/root/proc" "$work/root/sys" 2>/dev/null || true # mounted while packages are configured
  fi
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
root=$work/root
say "making $made of Debian's packages, some two minutes"
set -m # gives it a process group of its own, to be ended with all that it started
debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates \
  "$suite" "$root" >"$work/log" 2>&1 &
unpacking=$!
set +m
begun=$SECONDS
while kill -0 "$unpacking" 2>/dev/null; do
  sleep 1
  if [ $(((SECONDS - begun) % 15)) = 14 ]; then
    say "$((SECONDS - begun)) s, $(tail -n 1 "$work/log")"
  fi
done
if ! wait "$unpacking"; then
  tail -n 20 "$work/log" >&2
  die "debootstrap failed"
fi
unpacking=
if compgen -G "$local_certificates/*.crt" >/dev/null; then
  cp "$local_certificates"/*.crt "$root$local_certificates/"
  chroot "$root" update-ca-certificates >/dev/null 2>&1
fi
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | "$docker" import --change 'ENV LANG=C.UTF-8' - "$made" >/dev/null
say "made $made"
found "$made"
