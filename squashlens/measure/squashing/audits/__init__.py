"""The audit: all estimates of influence compared, with proxies and attribution methods."""
