"""One command for the day a GPU is there: install, run the tests marked `cuda`, time the measurements, write a page."""
