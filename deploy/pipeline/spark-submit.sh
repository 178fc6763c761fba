#!/usr/bin/env bash
# The same job on Spark on Kubernetes, in cluster mode: the driver is a pod, and so are as many executors as the log
# needs. Run it with Spark 4.0's own spark-submit and a kubeconfig; rbac.yaml and spark-rbac.yaml must be applied.
#   deploy/pipeline/spark-submit.sh https://API-SERVER:6443 s3a://BUCKET/group-hygiene/main [OPTION...]
#   IMAGE=REGISTRY/group-hygiene-pipeline:0.1.0    the image, under the name under which you pushed it
#   SECRET=hygiene-bucket    a Secret in the namespace with what leads to the object store, to which driver and executors
#                            write. Left out, they have the IAM roles of their ServiceAccounts.
#   KEYS="AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION"    those of its keys that they get as variables. For a store
#                            of your own add AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP where it has no TLS.
#   NAMESPACE=kafka CONNECTION=main    the KafkaConnection
#   MAX_EXECUTORS=10         executors, of two cores each
# OPTION: further ones of spark-submit, which win: --conf spark.executor.memory=2g
# No secret is among the arguments: the driver reads the KafkaConnection and its Secrets by its ServiceAccount, and hands
# what executors need to them, encrypted.
set -euo pipefail
api_server=${1:?the address of the API server, https://HOST:PORT}
warehouse=${2:?the URI of the warehouse}
shift 2
image=${IMAGE:-group-hygiene-pipeline:0.1.0}
namespace=${NAMESPACE:-kafka}
connection=${CONNECTION:-main}
executors=${MAX_EXECUTORS:-10}
home=/opt/group-hygiene
template=$(cd "$(dirname "$0")" && pwd)/pod-template.yaml
options=()
if [ -n "${SECRET:-}" ]; then
  for key in ${KEYS:-AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION}; do
    for role in driver executor; do options+=(--conf "spark.kubernetes.$role.secretKeyRef.$key=$SECRET:$key"); done
  done
fi
exec spark-submit \
  --master "k8s://$api_server" \
  --deploy-mode cluster \
  --name group-hygiene-pipeline \
  --conf spark.kubernetes.namespace="$namespace" \
  --conf spark.kubernetes.container.image="$image" \
  --conf spark.kubernetes.driver.podTemplateFile="$template" \
  --conf spark.kubernetes.executor.podTemplateFile="$template" \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=group-hygiene-pipeline \
  --conf spark.kubernetes.authenticate.executor.serviceAccountName=group-hygiene-pipeline-executor \
  --conf spark.authenticate=true \
  --conf spark.network.crypto.enabled=true \
  --conf spark.pyspark.python="$home/bin/python" \
  --conf spark.driver.extraClassPath="$home/jars/*" \
  --conf spark.executor.extraClassPath="$home/jars/*" \
  --conf spark.driver.memory=2g \
  --conf spark.driver.memoryOverhead=1536m \
  --conf spark.executor.cores=2 \
  --conf spark.executor.memory=4g \
  --conf spark.dynamicAllocation.enabled=true \
  --conf spark.dynamicAllocation.shuffleTracking.enabled=true \
  --conf spark.dynamicAllocation.minExecutors=0 \
  --conf spark.dynamicAllocation.maxExecutors="$executors" \
  ${options[@]+"${options[@]}"} "$@" \
  "local://$home/lib/python3.11/site-packages/group_hygiene/cli/__main__.py" \
  pipeline run --connection "$connection" --namespace "$namespace" --warehouse "$warehouse"
