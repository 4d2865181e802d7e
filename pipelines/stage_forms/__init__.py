"""Forms of stages: arrays with rows of pictures, clips or regions, captions, rows taken over from earlier outputs."""
