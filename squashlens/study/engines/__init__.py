"""The engines that start workers: local processes, Ray and Slurm. A worker does the same on all of them."""
