"""Parts of a report: lines, tables and wording, and all of a run's facts as data."""
