#!/usr/bin/env bash
# What a container of the pipeline begins with: `driver ...` and `executor ...` as Spark on Kubernetes calls its images, else
# any command. Variables: those that Spark sets for its pods (BasicDriverFeatureStep, BasicExecutorFeatureStep).
set -euo pipefail

# Java and Hadoop end where the user has no name, which clusters may give to a pod: this library adds one, to this process.
if ! getent passwd "$(id -u)" > /dev/null; then
  export NSS_WRAPPER_PASSWD=${TMPDIR:-/tmp}/passwd NSS_WRAPPER_GROUP=/etc/group LD_PRELOAD=libnss_wrapper.so
  { cat /etc/passwd; echo "hygiene:x:$(id -u):$(id -g)::/tmp:/bin/false"; } > "$NSS_WRAPPER_PASSWD" || {
    echo "the user $(id -u) has no name, and ${NSS_WRAPPER_PASSWD%/*} is not writable: mount a volume there, such as an emptyDir" >&2
    exit 1
  }
fi

case ${1:-} in
  driver)
    shift
    address=$SPARK_DRIVER_BIND_ADDRESS
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" --conf spark.driver.bindAddress="$address" \
      --conf spark.executorEnv.SPARK_DRIVER_POD_IP="$address" --deploy-mode client "$@"
    ;;
  executor)
    # In the order of their numbers: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
    options=()
    for ((i = 0; ; i++)); do
      name=SPARK_JAVA_OPT_$i
      [ -n "${!name+set}" ] || break
      options+=("${!name}")
    done
    exec tini -s -- java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec tini -s -- "$@"
    ;;
esac
