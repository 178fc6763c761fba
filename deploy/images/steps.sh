#!/bin/sh
# All that the Dockerfiles beside this do, so that it can be run without an engine for containers: they call nothing else.
#   ROOT=/tmp/image deploy/images/steps.sh operator
# ROOT: the root of the file system of the image; left out, the one that there is. PYTHON: 3.11 or newer.
# What is installed is what the locks beside this name, each file with one of the hashes that stand there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
root=${ROOT:-}
home=$root/opt/group-hygiene

# A virtual environment with the packages of a lock and this project, without what only installs: pip and setuptools.
install() {
  work=$(mktemp -d)
  "${PYTHON:-python3}" -m venv "$home"
  "$home/bin/pip" install -q --require-hashes -r "$here/build.lock"
  # PySpark comes as source: without isolation it is built by what is pinned, and by nothing that pip chooses.
  "$home/bin/pip" install -q --require-hashes --no-build-isolation --use-pep517 -r "$here/$1.lock"
  # setuptools writes beside what it builds.
  mkdir "$work/source"
  cp -RL "$source/pyproject.toml" "$source/README.md" "$source/LICENSE" "$source/operator" "$work/source/"
  "$home/bin/pip" wheel -q --no-deps --no-build-isolation -w "$work/dist" "$work/source"
  "$home/bin/pip" install -q --no-deps "$work"/dist/*.whl
  "$home/bin/pip" check
  "$home/bin/pip" uninstall -q -y pip setuptools
  rm -rf "$work"
  "$home/bin/python" "$here/sbom.py" "$home" > "$home/sbom.cdx.json"
}

case ${1:-} in
  operator)
    install operator
    ;;
  # Spark's image is an Ubuntu 22.04, whose own Python (3.10) is too old; its python3.11 is the release candidate 3.11.0~rc1,
  # and apt takes whichever is there on that day. No test runs this stage.
  packages)
    apt-get update
    apt-get install -y --no-install-recommends python3.11 python3.11-venv
    rm -rf /var/lib/apt/lists/*
    ;;
  # What PySpark lacks, and hadoop-aws: for warehouses with s3a:// URIs.
  jars)
    work=$(mktemp -d)
    copy="mvn -B -ntp -q -Dmdep.useRepositoryLayout=true -DoutputDirectory=$work"
    $copy -f "$source/sandbox/spark/pom.xml" dependency:copy-dependencies
    for artifact in ${JARS-org.apache.hadoop:hadoop-aws:3.4.1 software.amazon.awssdk:bundle:2.24.6}; do
      $copy dependency:copy -Dartifact="$artifact"
    done
    mkdir -p "$home/jars"
    # Where each lay: group/artifact/version/file, which the bill of materials needs.
    (cd "$work" && find . -name '*.jar' | LC_ALL=C sort) > "$home/jars/coordinates.txt"
    find "$work" -name '*.jar' -exec mv {} "$home/jars/" \;
    rm -rf "$work"
    ;;
  pipeline)
    install pipeline
    ;;
  *)
    echo "usage: [ROOT=DIR] $0 operator|packages|jars|pipeline" >&2
    exit 1
    ;;
esac
