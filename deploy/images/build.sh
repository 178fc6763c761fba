#!/usr/bin/env bash
# Builds the images of this folder, by podman or docker: deploy/images/build.sh [operator|pipeline]...   (left out: both)
# deploy/images/build.sh --source prints the checksum of the files that images are made of, which is a label of each.
#   ENGINE=docker      which of the two; left out, the one that is there, podman first
#   TAG=0.2.0          the images' tag; left out, the version of this checkout
#   BASE=NAME          another image of Debian 12; left out, debian:bookworm-slim
#   CA=FILE            certificates to trust while building, as PEM: those of a company's proxy
#   MAVEN_SETTINGS=FILE    a settings.xml, for a mirror of Maven's repository
#   PIP_CONFIG=FILE    a pip.conf, for another index of Python packages
#   SOURCE_URL=URL, HOME_URL=URL    the repository and the site of docs/, for the images' labels
#   OPTIONS="--network host"    more options of the engine's `build`
# HTTPS_PROXY and similar variables are passed on. Files that may hold a token are secrets of the build: they are in no layer,
# and in no list of processes.
# Each build asks the registry for a newer base, and the first build of a day takes the updates of Debian's packages.
# If no registry has debian:bookworm-slim, and BASE is not set, the base is made of Debian's packages by debootstrap, as root.
set -euo pipefail
for file in CA MAVEN_SETTINGS PIP_CONFIG; do
  case ${!file:-} in '' | /*) ;; *) printf -v "$file" %s "$PWD/${!file}" ;; esac
done
cd "$(dirname "$0")/../.."
# What .dockerignore lets in.
source=$(find pyproject.toml README.md LICENSE operator crds deploy/images testing/sandbox/spark/pom.xml -type f \
  ! -path '*/__pycache__/*' ! -path '*.egg-info/*' | LC_ALL=C sort | xargs cksum | cksum | cut -d ' ' -f 1)
if [ "${1:-}" = --source ]; then
  echo "$source"
  exit
fi
engine=${ENGINE:-$(command -v podman || command -v docker || true)}
[ -n "$engine" ] || { echo "neither podman nor docker is there: install one, or name yours as ENGINE" >&2; exit 1; }
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' operator/group_hygiene/__init__.py)
tag=${TAG:-$version}
# Empty outside of a checkout; of changed files it ends with -dirty.
revision=$(git describe --always --dirty --abbrev=40 --exclude '*' 2> /dev/null || true)
base=${BASE:-debian:bookworm-slim}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

is_stored() { "$engine" image inspect "$1" > /dev/null 2>&1; }

# As debian:bookworm-slim is made: the fewest packages, and neither manuals nor translations.
base_of_packages() {
  base=localhost/debian-packages:bookworm-slim
  if is_stored "$base"; then return; fi
  command -v debootstrap > /dev/null || {
    cat "$work/pull" >&2
    echo "debian:bookworm-slim can't be pulled: install debootstrap, or name an image of Debian 12 as BASE" >&2
    exit 1
  }
  # What debootstrap mounts in there is not removed with it.
  trap 'rm -rf --one-file-system "$work"' EXIT
  debootstrap --force-check-gpg --variant=minbase bookworm "$work/root" > "$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
  for suite in bookworm-updates:debian bookworm-security:debian-security; do
    echo "deb http://deb.debian.org/${suite#*:} ${suite%:*} main" >> "$work/root/etc/apt/sources.list"
  done
  # As in debian:bookworm-slim.
  cat > "$work/root/etc/dpkg/dpkg.cfg.d/slim" << 'END'
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
END
  # Here, and not in a layer of each image, which would hold a second copy of each file.
  DEBIAN_FRONTEND=noninteractive chroot "$work/root" sh -c 'apt-get update && apt-get upgrade -y --no-install-recommends' \
    > "$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
  # The first two are those of this machine.
  (cd "$work/root" && rm -rf etc/{hostname,resolv.conf} var/cache/apt/* var/lib/apt/lists/* var/log/* usr/share/{man,locale,info}/*)
  find "$work/root/usr/share/doc" -type f ! -name copyright -delete
  tar -C "$work/root" -c . | "$engine" import - "$base" > /dev/null
}

if "$engine" pull -q "$base" > /dev/null 2> "$work/pull"; then
  echo "base: $base"
elif is_stored "$base"; then
  echo "base: $base of the local store, since no registry gives it"
elif [ -n "${BASE:-}" ]; then
  cat "$work/pull" >&2
  echo "BASE=$base can't be pulled, and the local store does not have it" >&2
  exit 1
else
  base_of_packages
  echo "base: $base, made of Debian's packages, since no registry gives debian:bookworm-slim"
fi

options=(--build-arg "BASE=$base" --build-arg "UPDATES=$(date -u +%F)" --label "group-hygiene.source=$source"
  --build-arg "VERSION=$version" --build-arg "REVISION=$revision"
  --build-arg "SOURCE_URL=${SOURCE_URL:-}" --build-arg "HOME_URL=${HOME_URL:-}")
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
[ $# -gt 0 ] || set -- operator pipeline
for image in "$@"; do
  case $image in
    operator) name=group-hygiene:$tag ;;
    pipeline) name=group-hygiene-pipeline:$tag ;;
    *) echo "$image: operator or pipeline" >&2; exit 1 ;;
  esac
  # shellcheck disable=SC2086  # several options in one word
  "$engine" build "${options[@]}" ${OPTIONS:-} -f "deploy/images/$image.Dockerfile" -t "$name" .
  echo "built $name: $(("$("$engine" image inspect -f '{{.Size}}' "$name")" / 1000000)) MB"
done
