"""Millrace on Spark: build a master store from a DataFrame, and enrich a stream with it."""

from millrace.spark.build_master import build_master
from millrace.spark.enrichment.enrich_planning import enrich
from millrace.spark.enrichment.star_planning import enrich_star
from millrace.spark.explain import explain
from millrace.spark.recipes import assign_keys, find_duplicates, find_new, merge_keys
from millrace.spark.session import session
from millrace.spark.streams.pair_planning import join_streams
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
