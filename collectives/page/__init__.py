"""The page of a program's ranks: one HTML file on which every operation of every rank can be followed.

============  ====================================================================
`alignment`   the moments of all ranks, and the calls that belong together
`placement`   the columns: a backward operation stands below its forward operation
`comparison`  copies that differ, values that are not finite, the pairing
`doubts`      what is legal, and often a mistake
`prediction`  predicted times, for a model of a machine
`data`        the records in columns, for the page
`document`    `page`: the HTML file
`show`        `show`: record a part of a program, and make its page
============  ====================================================================
"""

from __future__ import annotations

from .document import Page, page

__all__ = ["Page", "page"]
