#!/bin/sh
# All that the Dockerfiles beside this run, so that most of it can be tried without an engine for containers:
#   ROOT=/tmp/image deploy/images/steps.sh operator
# ROOT: the root of the file system of the image; left out, the one that there is. PYTHON: 3.11 or newer.
# It installs what the locks beside this name, each file with one of the hashes there.
# Secrets of the build, each of which may be missing: `ca`, the certificates to trust, as PEM; `maven`, a settings.xml; `pip`, a
# pip.conf. SECRETS: their folder; left out, the one of the engines.
set -eu
secrets=${SECRETS:-/run/secrets}
if [ -s "$secrets/ca" ]; then
  export PIP_CERT="$secrets/ca" SSL_CERT_FILE="$secrets/ca"
fi
if [ -s "$secrets/pip" ]; then
  export PIP_CONFIG_FILE="$secrets/pip"
fi
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
  # What no import reaches: a second client of Kubernetes, tests, examples.
  (cd "$home"/lib/python3*/site-packages && rm -rf kubernetes/aio pyspark/examples pyspark/data)
  # Descriptions of AWS's services: those that give credentials stay.
  find "$home"/lib/python3*/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
    ! -name sts ! -name sso ! -name sso-oidc ! -name signin -exec rm -rf {} +
  find "$home" -depth -type d \( -name tests -o -name test \) -exec rm -rf {} +
  rm -rf "$work"
}

# Of what is in the image in the end.
bill_of_materials() { "$home/bin/python" "$here/sbom.py" "$home" > "$home/sbom.cdx.json"; }

case ${1:-} in
  operator)
    install operator
    bill_of_materials
    ;;
  # Debian's packages with these names, and the updates of those that the base has.
  packages)
    shift
    export DEBIAN_FRONTEND=noninteractive
    # Where certificates are given, a mirror may be behind https.
    [ ! -s "$secrets/ca" ] || echo "Acquire::https::CaInfo \"$secrets/ca\";" > /etc/apt/apt.conf.d/90ca
    # Java's packages link manuals there, and slim images lack the folder.
    mkdir -p /usr/share/man/man1
    apt-get update -q
    apt-get upgrade -q -y --no-install-recommends
    apt-get install -q -y --no-install-recommends "$@"
    rm -rf /etc/apt/apt.conf.d/90ca /tmp/hsperfdata_* /var/lib/apt/lists/* /var/cache/apt/* /usr/share/man /var/log/*.log
    # Licences stay: they must be passed on with an image. Some are links.
    find /usr/share/doc -type f ! -name copyright -delete
    ;;
  # What PySpark lacks: for Kafka and Delta, and for tables at s3a:// URIs.
  jars)
    work=$(mktemp -d)
    if [ -s "$secrets/ca" ]; then
      # Java's own store of certificates is made from these files.
      csplit -s -z -b %03d.crt -f /usr/local/share/ca-certificates/given- "$secrets/ca" '/-----BEGIN CERTIFICATE/' '{*}'
      update-ca-certificates > /dev/null
    fi
    # As an argument: MAVEN_ARGS is read by Maven 3.9 and later, and Debian 12 has 3.8.
    settings=''
    [ ! -s "$secrets/maven" ] || settings="-s $secrets/maven"
    for file in "$source/testing/sandbox/spark/pom.xml" "$here/object-stores.xml"; do
      # shellcheck disable=SC2086  # none, or two words
      # -C: Maven 3 only warns of a wrong checksum.
      mvn -B -C -ntp -q $settings -f "$file" dependency:copy-dependencies -Dmdep.useRepositoryLayout=true -DoutputDirectory="$work"
    done
    mkdir -p "$home/jars"
    # Where each lay: group/artifact/version/file, which the bill of materials needs.
    (cd "$work" && find . -name '*.jar' | LC_ALL=C sort) > "$home/jars/coordinates.txt"
    find "$work" -name '*.jar' -exec mv {} "$home/jars/" \;
    # Exactly these jars: checksums of Maven come from the same server.
    (cd "$home/jars" && LC_ALL=C sha256sum -- *.jar) | diff "$here/jars.lock" - >&2
    rm -rf "$work"
    ;;
  pipeline)
    install pipeline
    # Parts of Spark that nothing here calls: machine learning, graphs, Hive, Connect, and state in RocksDB.
    cd "$home"/lib/python3*/site-packages/pyspark/jars
    for part in spark-mllib spark-graphx breeze spire algebra cats-kernel spark-connect spark-hive hive-exec hive-metastore hive-service hive-jdbc hive-beeline hive-cli derby datanucleus jdo \
      rocksdbjni; do
      rm -f "$part"*.jar
    done
    rm -rf connect-repl
    # Flight, and what to compile against.
    (cd ../../pyarrow && rm -rf include libarrow_flight* _flight* libarrow_python_flight*)
    bill_of_materials
    ;;
  *)
    echo "usage: [ROOT=DIR] $0 packages NAME...|operator|jars|pipeline" >&2
    exit 1
    ;;
esac
