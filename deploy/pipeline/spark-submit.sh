#!/usr/bin/env bash
# The same job on Spark on Kubernetes, in cluster mode: the driver and as many executors as the log needs run in pods. Run it
# with spark-submit of Spark 4.2 and a kubeconfig, after you applied rbac.yaml and spark-rbac.yaml.
# Spark 4.2's driver pods stay when they have ended: kubectl delete pods -n group-hygiene-spark -l spark-role=driver
# --field-selector=status.phase=Succeeded
#   deploy/pipeline/spark-submit.sh https://API-SERVER:6443 s3a://BUCKET/group-hygiene/main [OPTION...]
#   IMAGE=REGISTRY/group-hygiene-pipeline:0.2.0    your registry and image name
#   SPARK_NAMESPACE=group-hygiene-spark    the namespace of spark-rbac.yaml, in which driver and executors run
#   SECRET=hygiene-bucket    a Secret in that namespace with credentials of the object store, to which driver and executors
#                            write. Left out, they use the IAM roles of their ServiceAccounts.
#   KEYS="AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION"    keys of the Secret to pass as variables. For a store of
#                            your own add AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP if it has no TLS.
#   NAMESPACE=kafka CONNECTION=main    the KafkaConnection
#   MAX_EXECUTORS=10         maximum number of executors, of two cores each
# OPTION: more options of spark-submit, which take precedence: --conf spark.executor.memory=2g
# The arguments contain no secret: the driver reads the KafkaConnection and its Secrets with its ServiceAccount, and sends
# executors the settings that they need, encrypted. Spark passes the key of that encryption to executors as a variable of their
# pods: users who may read pods in SPARK_NAMESPACE can read it.
set -euo pipefail
# Each key is a word, and no pattern of file names.
set -f
api_server=${1:?the address of the API server, https://HOST:PORT}
warehouse=${2:?the URI of the warehouse}
shift 2
image=${IMAGE:?your registry and image name, REGISTRY/group-hygiene-pipeline:0.2.0}
namespace=${NAMESPACE:-kafka}
spark_namespace=${SPARK_NAMESPACE:-group-hygiene-spark}
connection=${CONNECTION:-main}
executors=${MAX_EXECUTORS:-10}
home=/opt/group-hygiene
template=$(dirname "$(readlink -f "$0")")/pod-template.yaml
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
  --conf spark.kubernetes.namespace="$spark_namespace" \
  --conf spark.kubernetes.container.image="$image" \
  --conf spark.kubernetes.driver.podTemplateFile="$template" \
  --conf spark.kubernetes.executor.podTemplateFile="$template" \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=group-hygiene-pipeline-driver \
  --conf spark.kubernetes.authenticate.executor.serviceAccountName=group-hygiene-pipeline-executor \
  --conf spark.kubernetes.driver.ownPersistentVolumeClaim=false \
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
