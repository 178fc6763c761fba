# The image of the operator, and of the command line. `make images` builds it by podman or docker; by hand, from the root of
# the repository: docker build -f deploy/images/operator.Dockerfile -t group-hygiene:0.2.0 .
# BASE: any Debian 12 (bookworm). docs/install.md says what a build behind a company's proxy needs.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
# A new value, such as the date, makes the engine install Debian's packages again instead of using its cache.
ARG UPDATES=
COPY deploy/images /src/deploy/images
RUN --mount=type=secret,id=ca /src/deploy/images/steps.sh packages python3 python3-venv
COPY pyproject.toml README.md LICENSE /src/
COPY operator /src/operator
COPY crds /src/crds
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip /src/deploy/images/steps.sh operator

# The same Python: the virtual environment is a link to it.
FROM ${BASE}
ARG UPDATES=
COPY deploy/images/steps.sh /src/deploy/images/steps.sh
RUN --mount=type=secret,id=ca /src/deploy/images/steps.sh packages python3 ca-certificates
COPY --from=build /opt/group-hygiene /opt/group-hygiene
ENV PATH=/opt/group-hygiene/bin:$PATH
USER 65532:65532
ENTRYPOINT ["group-hygiene"]
CMD ["operator"]
# Last, as each commit has other values. SOURCE_URL: the repository; HOME_URL: the site of docs/.
ARG VERSION=
ARG REVISION=
ARG SOURCE_URL=
ARG HOME_URL=
LABEL org.opencontainers.image.title="kafka-group-hygiene" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE_URL}" \
      org.opencontainers.image.url="${HOME_URL}"
