"""Looking at communication: plans, dry runs, timelines."""
