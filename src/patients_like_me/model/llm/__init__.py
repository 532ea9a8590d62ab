"""One client for generative language models: an endpoint, a decoder in this process, and a deterministic one."""
