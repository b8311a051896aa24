"""Spark over Quorate: reading topics (`format("quorate")`) and sweeping the simulator over many seeds.

Modules here import pyspark, which only the extra `[local]` or a Spark platform brings; nothing else of
quorate imports them unless it is asked to run Spark.
"""
