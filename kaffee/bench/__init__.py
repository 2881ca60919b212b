"""The benchmark: recipes, cells, engines, tables."""
