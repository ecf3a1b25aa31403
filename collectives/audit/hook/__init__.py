"""On the path of an audited program: `sitecustomize` loads the collector, `one_rank` is its process group."""
