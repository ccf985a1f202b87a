"""Records into text for people. Pure functions; knows neither pytest nor torch."""
