"""A real S3 store, built from the go.mod in this folder."""

from testing.sandbox.s3.server import REGION, Bucket, S3Store

__all__ = ["REGION", "Bucket", "S3Store"]
