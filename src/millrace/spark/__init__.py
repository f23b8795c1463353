"""Millrace on Spark: build a master store from a DataFrame, and enrich a stream with it."""

from millrace.spark.enrich.single import enrich
from millrace.spark.enrich.star import enrich_star
from millrace.spark.explain import explain
from millrace.spark.master.build_master import build_master
from millrace.spark.recipes import assign_keys, find_duplicates, find_new, merge_keys
from millrace.spark.session import session
from millrace.spark.streams.join_streams import join_streams
from millrace.spark.watch import watch

__all__ = [
    "assign_keys",
    "build_master",
    "enrich",
    "enrich_star",
    "explain",
    "find_duplicates",
    "find_new",
    "join_streams",
    "merge_keys",
    "session",
    "watch",
]
