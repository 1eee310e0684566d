"""Studies: grids of measurements, and scans over files of prompts, on one machine or a cluster, with a store."""
