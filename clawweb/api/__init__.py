"""HTTP for programs: OpenAI's under /v1, ours under /api, health beside them."""
