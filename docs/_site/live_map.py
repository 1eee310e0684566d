"""Write the map that the site shows live: `python docs/_site/live_map.py FILE`."""

import sys

import squashlens as sl

PROMPT = "The old ferry left the island at noon, and nobody saw it again until the"

if __name__ == "__main__":
    with sl.quiet():
        sl.squash_map(sl.load("tiny-prose"), PROMPT).save(sys.argv[1])
