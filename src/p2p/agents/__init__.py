"""Who thinks: each agent turns records into a question and an answer into records."""
