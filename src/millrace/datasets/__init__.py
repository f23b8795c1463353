"""Data sets of the papers' experiments: Zipf streams, the synthetic master, TPC-H, weather, stock orders.

Data are generated batch by batch in constant memory. They depend on the seed, but never on the batch size.
"""

from millrace.datasets.orders import read_orders
from millrace.datasets.synthetic import MASTER_SCHEMA, synthetic_master
from millrace.datasets.tpch import orders_stream, skewed_orders, tpch
from millrace.datasets.weather import read_weather, synthetic_weather, weather_schema
from millrace.datasets.zipf import STREAM_SCHEMA, ZipfSampler, zipf_stream

__all__ = [
    "MASTER_SCHEMA",
    "STREAM_SCHEMA",
    "ZipfSampler",
    "orders_stream",
    "read_orders",
    "read_weather",
    "skewed_orders",
    "synthetic_master",
    "synthetic_weather",
    "tpch",
    "weather_schema",
    "zipf_stream",
]
