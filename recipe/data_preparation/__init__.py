"""Conversion of public data sets to verl's parquet schema, one row at a time: ``online-refiner prepare``."""
