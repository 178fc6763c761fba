#!/usr/bin/env bash
# The same job on Spark on Kubernetes, in cluster mode: the driver is a pod, and so are as many executors as the log
# needs. Run it with Spark 4.0's own spark-submit. No secret is among the arguments: the driver reads the
# KafkaConnection and its Secrets by its ServiceAccount, and hands what executors need to them, encrypted.
# Driver and executors write to the object store. Without an IAM role of their ServiceAccounts, add for both, and for each
# variable: --conf spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY=hygiene-bucket:AWS_SECRET_ACCESS_KEY
#   deploy/pipeline/spark-submit.sh https://API-SERVER:6443 s3a://BUCKET/group-hygiene/main
set -euo pipefail
api_server=${1:?the address of the API server, https://HOST:PORT}
warehouse=${2:?the URI of the warehouse}
image=${IMAGE:-group-hygiene-pipeline:0.1.0}
namespace=${NAMESPACE:-kafka}
connection=${CONNECTION:-main}
home=/opt/group-hygiene
exec spark-submit \
  --master "k8s://$api_server" \
  --deploy-mode cluster \
  --name group-hygiene-pipeline \
  --conf spark.kubernetes.namespace="$namespace" \
  --conf spark.kubernetes.container.image="$image" \
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
  --conf spark.dynamicAllocation.maxExecutors="${MAX_EXECUTORS:-10}" \
  "local://$home/lib/python3.11/site-packages/group_hygiene/cli/__main__.py" \
  pipeline run --connection "$connection" --namespace "$namespace" --warehouse "$warehouse"
