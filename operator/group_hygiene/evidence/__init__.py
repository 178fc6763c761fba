"""What the pipeline's tables say about groups, and whether to trust them. Reads only.

`reader` is the operator's only importer of deltalake. Nothing here imports the pipeline or Spark.

    reader  reads the tables `coverage` and `activity`, in a process of its own that reaches only its object store
    trust   whether the tables may be used: fresh, complete, of this cluster and this log
"""
