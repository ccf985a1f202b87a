"""Generate text with a language model: caches of keys and values, sampling, speculation, a scheduler."""
