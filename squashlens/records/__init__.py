"""Results as labelled objects: their labels, units and provenance, and how several become one."""
