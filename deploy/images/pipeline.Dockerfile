# The image of the pipeline: Spark, the jars that PySpark lacks, and this project. From the root of the repository:
#   docker build -f deploy/images/pipeline.Dockerfile -t group-hygiene-pipeline:0.1.0 .
# One image for the CronJob, for spark-submit in cluster mode (it has Spark's own entrypoint), and for its executors.
# No image was ever built by this project's tests: `make images-check` runs what RUN runs here, but for the Ubuntu
# packages, in an empty folder, and the pipeline from it. Spark's image is of linux/amd64 and linux/arm64.
FROM maven:3.9.9-eclipse-temurin-17 AS jars
COPY sandbox/spark/pom.xml /src/sandbox/spark/pom.xml
COPY deploy/images /src/deploy/images
RUN /src/deploy/images/steps.sh jars

FROM apache/spark:4.0.0-scala2.13-java17-ubuntu
LABEL org.opencontainers.image.title="kafka-group-hygiene-pipeline" org.opencontainers.image.licenses="Apache-2.0"
USER root
COPY deploy/images /src/deploy/images
RUN /src/deploy/images/steps.sh packages
COPY --from=jars /opt/group-hygiene/jars /opt/group-hygiene/jars
COPY pyproject.toml README.md LICENSE /src/
COPY operator /src/operator
COPY crds /src/crds
RUN PYTHON=python3.11 /src/deploy/images/steps.sh pipeline
ENV PATH=/opt/group-hygiene/bin:$PATH \
    PYSPARK_PYTHON=/opt/group-hygiene/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/group-hygiene/bin/python \
    GROUP_HYGIENE_SPARK_JARS=/opt/group-hygiene/jars
USER 185
