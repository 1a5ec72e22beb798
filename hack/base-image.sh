#!/usr/bin/env bash
# Makes a base image for the Dockerfile where no image registry can be reached: Debian 12 with Python, by debootstrap.
#
#   hack/base-image.sh [NAME]        as root, once; then: make image BASE=NAME       (NAME: inferencecache-base:bookworm)
#
# Certificates that this machine's administrator added to its trust store are added to the image's too: where they are
# needed to fetch packages here, the build that starts from the image needs them as well.
set -euo pipefail

name=${1:-inferencecache-base:bookworm}
suite=bookworm
docker=${DOCKER:-docker}
local_certificates=/usr/local/share/ca-certificates

say() { printf 'base image: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[ "$(id -u)" = 0 ] || die "debootstrap needs root"
command -v debootstrap >/dev/null || die "needs debootstrap; on Debian and Ubuntu: apt-get install debootstrap"
"$docker" info >/dev/null 2>&1 || die "no Docker daemon answers; start it, or set DOCKER_HOST"

if "$docker" image inspect "$name" >/dev/null 2>&1; then
  say "$name is there already; to make it anew: $docker image rm $name"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
say "unpacking Debian $suite, some two minutes"
if ! debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates \
  "$suite" "$root" >"$work/log" 2>&1; then
  tail -n 20 "$work/log" >&2
  die "debootstrap failed"
fi
if compgen -G "$local_certificates/*.crt" >/dev/null; then
  cp "$local_certificates"/*.crt "$root$local_certificates/"
  chroot "$root" update-ca-certificates >/dev/null
fi
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | "$docker" import --change 'ENV LANG=C.UTF-8' - "$name" >/dev/null
say "made $name"
