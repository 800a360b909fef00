"""From public data sets to verl's parquet schema, one row at a time; ``online-refiner prepare``."""

from recipe.own_names import refuse_hidden

refuse_hidden(__name__, "reward")
