"""Records: one for each operation that a rank runs, forwards and backwards, and the texts that show them.

==========  =========================================================================
`record`    the dataclasses: `OperationRecord`, its calls, contributions and summaries
`summary`   the summary of an array: shape, dtype, values, digest
`recorder`  `Recorder`, the listener that makes the records
`text`      the texts of ``tape.show()`` and ``tape.trace()``
==========  =========================================================================
"""
