# The image of the operator, and of the command line. From the root of the repository:
#   docker build -f deploy/images/operator.Dockerfile -t group-hygiene:0.1.0 .
#   docker buildx build -f deploy/images/operator.Dockerfile --platform linux/amd64,linux/arm64 --sbom=true --provenance=mode=max --push -t REGISTRY/group-hygiene:0.1.0 .
# No image was ever built by this project's tests: they run what RUN runs here, in an empty folder, and start the operator from it.
FROM python:3.11.13-slim-bookworm AS build
COPY pyproject.toml README.md LICENSE /src/
COPY operator /src/operator
COPY crds /src/crds
COPY deploy/images /src/deploy/images
RUN /src/deploy/images/steps.sh operator

# The same Python: the virtual environment is a link to it.
FROM python:3.11.13-slim-bookworm
LABEL org.opencontainers.image.title="kafka-group-hygiene" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/group-hygiene /opt/group-hygiene
ENV PATH=/opt/group-hygiene/bin:$PATH
USER 65532:65532
ENTRYPOINT ["group-hygiene"]
CMD ["operator"]
