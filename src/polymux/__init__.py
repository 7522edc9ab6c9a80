"""Polymux: many applications share a machine's accelerators without knowing them."""
