"""A real Alertmanager, built from the go.mod in this folder."""

from sandbox.alertmanager.server import Alertmanager

__all__ = ["Alertmanager"]
