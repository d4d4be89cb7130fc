"""The tokenizer process: chat templates, token ids, length checks."""
