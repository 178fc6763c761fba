"""One real API server for all tests of this folder, with the project's kinds installed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import CustomObjectsApi
from kubernetes.config import new_client_from_config

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install, install_crds

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def api_server() -> Iterator[ApiServer]:
    """An API server with the CRDs of crds/ established, and an empty namespace `kafka`."""
    with ApiServer() as server:
        install_crds(server)
        server.kubectl("create", "namespace", "kafka")
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server of its own with crds/ and deploy/ applied, that tests may stop; it logs who asked for what."""
    with ApiServer(audit_log=True) as server:
        install(server)
        yield server


@pytest.fixture(scope="module")
def api(api_server: ApiServer) -> Iterator[CustomObjectsApi]:
    """The API server without kubectl in between, which would take a tenth of a second for each of the cases."""
    with new_client_from_config(str(api_server.kubeconfig)) as client:
        yield CustomObjectsApi(client)
