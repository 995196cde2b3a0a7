"""What Spark's Python processes load as they start; its directory is in their ``PYTHONPATH``."""
