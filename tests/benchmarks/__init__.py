"""What squashlens costs beside what one would do without it; `make bench` runs all of it and writes the page."""
