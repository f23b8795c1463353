"""Millrace on Spark: build a master store from a DataFrame, enrich streams with it, and join streams with each other.

Each public function is in the module of the same name in this folder, or in ``recipes``. These functions run on the
driver: ``enrichment``, ``streams`` and ``pipeline`` prepare the queries. ``plans`` contains the data classes that are
sent to the workers, and ``tasks`` the code that runs there, with ``state``, ``transport`` and ``metrics``.
"""

# Everything is imported here, not on first use: a function and its module have the same name, and loading the module
# binds that name to the module. Once this file has run, `millrace.spark.enrich` is the function, whatever is imported
# later. No folder may have the name of a function: its modules would be out of reach as attributes of the package.
from millrace.spark.build_master import build_master
from millrace.spark.enrich import enrich
from millrace.spark.enrich_star import enrich_star
from millrace.spark.explain import explain
from millrace.spark.join_streams import join_streams
from millrace.spark.recipes import assign_keys, find_duplicates, find_new, merge_keys
from millrace.spark.session import session
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
