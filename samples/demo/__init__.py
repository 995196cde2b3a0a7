"""The demo: a year of departures through everything, with the server killed on the way.  Run it by ``make demo``."""
