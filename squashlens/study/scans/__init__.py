"""Scans: one measurement of every prompt of a file or dataset, stored as Parquet shards."""
