# The image of the pipeline: PySpark (which holds Spark), the jars that it lacks, and this project. `make images` builds it by
# podman or docker; by hand, from the root of the repository:
#   docker build -f deploy/images/pipeline.Dockerfile -t group-hygiene-pipeline:0.2.0 .
# One image for the CronJob, for spark-submit in cluster mode, and for executors.
# BASE: any Debian 12 (bookworm). docs/install.md says what a build behind a company's proxy needs.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
# A new value, such as the date, makes the engine install Debian's packages again instead of using its cache.
ARG UPDATES=
COPY deploy/images /src/deploy/images
RUN --mount=type=secret,id=ca /src/deploy/images/steps.sh packages python3 python3-venv maven ca-certificates-java
COPY testing/sandbox/spark/pom.xml /src/testing/sandbox/spark/pom.xml
RUN --mount=type=secret,id=ca --mount=type=secret,id=maven /src/deploy/images/steps.sh jars
COPY pyproject.toml README.md LICENSE /src/
COPY operator /src/operator
COPY crds /src/crds
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip /src/deploy/images/steps.sh pipeline

FROM ${BASE}
ARG UPDATES=
COPY deploy/images/steps.sh /src/deploy/images/steps.sh
RUN --mount=type=secret,id=ca /src/deploy/images/steps.sh packages python3 openjdk-17-jre-headless libnss-wrapper tini ca-certificates
COPY deploy/images/entrypoint.sh /opt/group-hygiene/entrypoint.sh
COPY --from=build /opt/group-hygiene /opt/group-hygiene
ENV PATH=/opt/group-hygiene/bin:$PATH \
    SPARK_HOME=/opt/group-hygiene/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/group-hygiene/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/group-hygiene/bin/python \
    GROUP_HYGIENE_SPARK_JARS=/opt/group-hygiene/jars
# Spark makes a folder where it is started.
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["/opt/group-hygiene/entrypoint.sh"]
CMD ["group-hygiene", "pipeline", "--help"]
# Last, as each commit has other values. SOURCE_URL: the repository; HOME_URL: the site of docs/.
ARG VERSION=
ARG REVISION=
ARG SOURCE_URL=
ARG HOME_URL=
LABEL org.opencontainers.image.title="kafka-group-hygiene-pipeline" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE_URL}" \
      org.opencontainers.image.url="${HOME_URL}"
