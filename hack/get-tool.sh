#!/usr/bin/env bash
# Finds or builds helm or promtool, and prints its path as its last line of stdout: hack/get-tool.sh helm|promtool
#
# One on PATH is good enough. Else it is built, once per user and version, from the published Go modules into
# ~/.cache/inferencecache/tools. Everything but the last line goes to stderr.
set -euo pipefail

case "${1:-}" in
  helm) module=helm.sh/helm/v3 version=v3.19.5 package=helm.sh/helm/v3/cmd/helm tags= ;;
  promtool) module=github.com/prometheus/prometheus version=v0.313.5 package=github.com/prometheus/prometheus/cmd/promtool tags=remove_all_sd ;;
  *) echo "usage: $0 helm|promtool" >&2; exit 2 ;;
esac
name=$1

say() { printf '%s: %s\n' "$name" "$*" >&2; }

if found=$(command -v "$name"); then
  printf '%s\n' "$found"
  exit 0
fi
bin="${XDG_CACHE_HOME:-$HOME/.cache}/inferencecache/tools/$version/bin"
if [ ! -x "$bin/$name" ]; then
  command -v go >/dev/null || { say "install $name, or Go from https://go.dev/dl/ to build it"; exit 1; }
  say "building $package $version; this happens once and takes some minutes"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$bin"
  # A module of its own that only requires the tool: `go install` refuses tools whose go.mod replaces something.
  (cd "$work" && go mod init inferencecache.io/tool && go get "$module@$version" &&
    CGO_ENABLED=0 GOWORK=off go build -mod=mod -tags "$tags" -o "$work/$name" -ldflags "-s -w" "$package") >&2
  mv -f "$work/$name" "$bin/$name"
fi
printf '%s\n' "$bin/$name"
