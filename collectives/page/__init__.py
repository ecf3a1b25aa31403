"""The page of a program's ranks: one HTML file on which every operation of every rank can be followed."""
