"""The api process of forebay: `python -m forebay_api`."""
