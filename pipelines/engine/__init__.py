"""The engine: brings stages up to date, unit by unit, whatever is killed."""
