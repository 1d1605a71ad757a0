"""Spark SQL's types for annotations in the command line. This module imports the types because only this package may
import pyspark."""

from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession"]
