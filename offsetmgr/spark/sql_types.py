"""The types of Spark SQL, for the command line: only this package imports pyspark."""

from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession"]
