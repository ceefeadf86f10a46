"""Cheap annotations: clicks and atlas seeds, weak label maps, size bounds."""
