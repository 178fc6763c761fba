#!/usr/bin/env bash
# Builds the images of this folder, by podman or docker: deploy/images/build.sh [operator|pipeline]...   (left out: both)
#   ENGINE=docker      which of the two; left out, the one that is there, podman first
#   TAG=0.1.0          the images' tag; left out, the version of this checkout
#   BASE=NAME          another image of Debian 12; left out, debian:bookworm-slim
#   CA=FILE            certificates to trust while building, as PEM: those of a company's proxy
#   MAVEN_SETTINGS=FILE    a settings.xml, for a mirror of Maven's repository
#   PIP_CONFIG=FILE    a pip.conf, for another index of Python packages
#   OPTIONS="--network host"    more options of the engine's `build`
# HTTPS_PROXY and the like are handed over by themselves. What may hold a token is a secret of the build: it is in no layer,
# and in no list of processes.
# Where the base can be had from no registry, it is made of Debian's packages by debootstrap, as root.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=${ENGINE:-$(command -v podman docker | head -1)}
[ -n "$engine" ] || { echo "neither podman nor docker is there: install one, or name yours as ENGINE" >&2; exit 1; }
tag=${TAG:-$(sed -n 's/^__version__ = "\(.*\)"/\1/p' operator/group_hygiene/__init__.py)}
base=${BASE:-debian:bookworm-slim}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# As debian:bookworm-slim is made: the least of packages, and neither manuals nor translations.
base_of_packages() {
  command -v debootstrap > /dev/null || { echo "$base can't be had: install debootstrap, or name an image of Debian 12 as BASE" >&2; exit 1; }
  base=localhost/debian-packages:bookworm
  "$engine" image inspect "$base" > /dev/null 2>&1 && return
  echo "$base is made of Debian's packages, as no registry gives debian:bookworm-slim"
  debootstrap --variant=minbase bookworm "$work/root" > "$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
  (cd "$work/root" && rm -rf var/cache/apt/* var/lib/apt/lists/* var/log/* usr/share/{doc,man,locale,info}/*)
  tar -C "$work/root" -c . | "$engine" import - "$base" > /dev/null
}

"$engine" image inspect "$base" > /dev/null 2>&1 || "$engine" pull -q "$base" > /dev/null 2> "$work/pull" || base_of_packages

options=(--build-arg "BASE=$base")
case $(basename "$engine") in
  # Below what any user may have; crun refuses the control groups of some machines.
  podman)
    options+=(--ulimit nofile=4096:4096 --ulimit nproc=4096:4096)
    if command -v runc > /dev/null; then options+=(--runtime runc); fi
    ;;
esac
if [ -n "${CA:-}" ]; then options+=(--secret "id=ca,src=$CA"); fi
if [ -n "${MAVEN_SETTINGS:-}" ]; then options+=(--secret "id=maven,src=$MAVEN_SETTINGS"); fi
if [ -n "${PIP_CONFIG:-}" ]; then options+=(--secret "id=pip,src=$PIP_CONFIG"); fi
declare -A names=([operator]=group-hygiene [pipeline]=group-hygiene-pipeline)
[ $# -gt 0 ] || set -- operator pipeline
for image in "$@"; do
  name=${names[$image]:?operator or pipeline}:$tag
  # shellcheck disable=SC2086  # several options in one word
  "$engine" build "${options[@]}" ${OPTIONS:-} -f "deploy/images/$image.Dockerfile" -t "$name" .
  echo "built $name: $(("$("$engine" image inspect -f '{{.Size}}' "$name")" / 1000000)) MB"
done
