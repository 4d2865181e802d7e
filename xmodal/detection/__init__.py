"""Detection: regions of pictures, which of them are kept, and their words; detectors that find them are below."""
