"""A real Alertmanager, built from the go.mod in this folder."""

from testing.sandbox.alertmanager.server import Alertmanager

__all__ = ["Alertmanager"]
