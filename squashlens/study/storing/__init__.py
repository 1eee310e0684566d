"""The store of a study: folders and object stores, one file for each cell, and claims of cells by workers."""
