"""Spark SQL's types for annotations in the command line. They are imported here because only this package may import
pyspark."""

from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession"]
